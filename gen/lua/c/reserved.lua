-- SPDX-License-Identifier: Apache-2.0
-- reserved.lua - names that no kernel can have, whatever its spec: a function of this name does not compile as C or C++, or takes
-- the place of one that the C library, or the compiler, relies on. What generated C itself calls things is no matter: see
-- symbols.lua.
return {
    patterns = {
        {"^_", "begins with '_': such names belong to the compiler"},
        {"^[Mm][Oo][Ee][Gg][Ee][Nn]_", "begins with 'moegen_': such names belong to moegen"},
        {"^moegen$", "belongs to moegen"},
        {"_workspace$", "ends in '_workspace', as the second function of every kernel does"},
        {"_t$", "ends in '_t', as the types of the C library do"},
        {"^pthread_", "belongs to the C library"}, {"^sched_", "belongs to the C library"}, {"^posix_", "belongs to the C library"},
        {"^timer_", "belongs to the C library"}, {"^mtx_", "belongs to the C library"}, {"^cnd_", "belongs to the C library"},
        {"^thrd_", "belongs to the C library"}, {"^tss_", "belongs to the C library"}, {"^atomic_", "belongs to the C library"},
        {"^[bl]e%d%dtoh$", "belongs to the C library"}, {"^hto[bl]e%d%d$", "belongs to the C library"},
        {"^U?INT[%u%d_]*_[CM]%u*$", "is a macro of C's headers"}, {"^%u[%u_]+_M[AI][XN]$", "is a macro of C's headers"},
    },
    words = {
        {"is a reserved word of C or C++", [[
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false
    alignas alignof constexpr nullptr static_assert thread_local typeof typeof_unqual asm and and_eq bitand bitor catch
    class co_await co_return co_yield compl concept const_cast consteval constinit decltype delete dynamic_cast explicit
    export friend mutable namespace new noexcept not not_eq operator or or_eq private protected public reinterpret_cast
    requires static_cast template this throw try typeid typename using virtual xor xor_eq
        ]]},
        {"is where a program starts", " main "},
        {"is a macro of some compilers", [[
    linux unix i386 sun sparc mips vax hpux m68k
        ]]},
        {"is a macro or type of C's headers", [[
    NULL EOF FILE DIR BUFSIZ CLOCKS_PER_SEC EXIT_FAILURE EXIT_SUCCESS FD_CLR FD_ISSET FD_SET FD_SETSIZE FD_ZERO NFDBITS
    BIG_ENDIAN LITTLE_ENDIAN PDP_ENDIAN BYTE_ORDER MB_CUR_MAX RAND_MAX WCONTINUED WEXITED WEXITSTATUS WIFCONTINUED
    WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED I complex imaginary noreturn
    INFINITY NAN HUGE_VAL uint ushort ulong u_char u_short u_int u_long fd_set fd_mask
        ]]},
        {"belongs to the C library", [[
    a64l abort abs accept access acct alarm aligned_alloc alloca arc4random arc4random_buf arc4random_uniform asctime
    assert at_quick_exit atexit atof atoi atol atoll bcmp bcopy bind brk bsearch btowc bzero c16rtomb c32rtomb call_once
    calloc chdir chmod chown chroot clearenv clearerr clock clock_getcpuclockid clock_getres clock_gettime
    clock_nanosleep clock_settime clone close closedir closefrom closelog confstr connect creat ctermid ctime daemon
    daylight dcgettext dgettext difftime dirfd div dlclose dlerror dlopen dlsym dprintf drand48 dup dup2 duplocale
    dysize ecvt endusershell environ epoll_wait erand48 err errno eventfd execl execle execlp execv execve execvp exit
    explicit_bzero faccessat fchdir fchmod fchmodat fchown fchownat fclose fcntl fcvt fdatasync fdopen feclearexcept
    fegetenv fegetexceptflag fegetround feholdexcept feof feraiseexcept ferror fesetenv fesetexceptflag fesetround
    fetestexcept feupdateenv fexecve fflush ffs ffsl ffsll fgetc fgetpos fgets fgetwc fgetws fileno flock flockfile
    fmemopen fnmatch fopen fork fpathconf fprintf fputc fputs fputwc fputws fread free freelocale freopen fscanf fseek
    fseeko fsetpos fstat fstatat fsync ftell ftello ftruncate ftrylockfile ftw funlockfile futimens fwide fwprintf
    fwrite fwscanf gcvt getaddrinfo getc getchar getcwd getdelim getdomainname getdtablesize getegid getentropy getenv
    geteuid getgid getgroups gethostbyname gethostid gethostname getline getloadavg getlogin getopt getpagesize getpass
    getpeername getpgid getpgrp getpid getppid getrandom getsid getsockname getsockopt getsubopt gettext getuid
    getusershell getw getwc getwchar getwd glob gmtime gsignal imaxabs imaxdiv index initstate isalnum isalpha isascii
    isatty isblank iscntrl isdigit isfdtype isgraph islower isprint ispunct isspace isupper iswalnum iswalpha iswblank
    iswcntrl iswctype iswdigit iswgraph iswlower iswprint iswpunct iswspace iswupper iswxdigit isxdigit jrand48 kill
    killpg l64a labs lchmod lchown lcong48 ldiv link linkat listen llabs lldiv localeconv localtime lockf longjmp
    lrand48 lseek lstat madvise malloc mblen mbrlen mbrtoc16 mbrtoc32 mbrtowc mbsinit mbsnrtowcs mbsrtowcs mbstowcs
    mbtowc memalign memccpy memchr memcmp memcpy memmove mempcpy memset mincore mkdir mkdirat mkdtemp mkfifo mkfifoat
    mknod mknodat mkstemp mkstemps mktemp mktime mlock mlock2 mlockall mmap mount mprotect mrand48 mremap msync munlock
    munlockall munmap nanosleep newlocale nftw nice nrand48 offsetof on_exit open open_memstream open_wmemstream openat
    opendir openlog optarg opterr optind optopt pathconf pause pclose perror pipe poll popen pread printf profil pselect
    psiginfo psignal ptrace putc putchar putenv puts putw putwc putwchar pwrite qecvt qfcvt qgcvt qsort quick_exit raise
    rand random read readdir readlink readlinkat realloc reallocarray realpath recv recvfrom recvmsg regexec remove
    rename renameat revoke rewind rindex rmdir rpmatch sbrk scandir scanf seed48 select send sendfile sendmsg sendto
    setbuf setbuffer setdomainname setegid setenv seteuid setgid sethostent sethostid sethostname setjmp setlinebuf
    setlocale setlogin setpgid setpgrp setregid setreuid setsid setsockopt setstate setuid setusershell setvbuf shm_open
    shm_unlink shutdown sigaction sigaddset sigaltstack sigblock sigdelset sigemptyset sigfillset siggetmask
    siginterrupt sigismember siglongjmp signal signgam sigpending sigprocmask sigqueue sigreturn sigsetjmp sigsetmask
    sigstack sigsuspend sigtimedwait sigwait sigwaitinfo sleep snprintf sockatmark socket socketpair splice sprintf
    srand srand48 srandom sscanf ssignal stat stderr stdin stdout stpcpy stpncpy strcasecmp strcat strchr strcmp strcoll
    strcpy strcspn strdup strerror strfmon strftime strlcat strlcpy strlen strncasecmp strncat strncmp strncpy strndup
    strnlen strpbrk strrchr strsep strsignal strspn strstr strtod strtof strtoimax strtok strtol strtold strtoll strtoq
    strtoul strtoull strtoumax strtouq strxfrm swprintf swscanf symlink symlinkat sync syscall sysconf syslog system
    tcgetpgrp tcsetpgrp tee tempnam time timegm timelocal timespec_get timezone tmpfile tmpnam toascii tolower toupper
    towctrans towlower towupper truncate ttyname ttyslot tzname tzset ualarm umask umount ungetc ungetwc unlink unlinkat
    unsetenv unshare uselocale usleep utimensat va_arg va_copy va_end va_start valloc vdprintf vfork vfprintf vfscanf
    vfwprintf vfwscanf vhangup vprintf vscanf vsnprintf vsprintf vsscanf vswprintf vswscanf vwprintf vwscanf wait wait3
    wait4 waitid waitpid wcpcpy wcpncpy wcrtomb wcscasecmp wcscat wcschr wcscmp wcscoll wcscpy wcscspn wcsdup wcsftime
    wcslen wcsncasecmp wcsncat wcsncmp wcsncpy wcsnlen wcsnrtombs wcspbrk wcsrchr wcsrtombs wcsspn wcsstr wcstod wcstof
    wcstoimax wcstok wcstol wcstold wcstoll wcstombs wcstoul wcstoull wcstoumax wcsxfrm wctob wctomb wctrans wctype
    wmemchr wmemcmp wmemcpy wmemmove wmemset wprintf write wscanf
        ]]},
    },
    -- Also with what stands for another type at the end: f, l, f32, f64x, ...
    math = [[
    692 97 acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos ccosh ceil
    cexp cimag clog clog10 conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh drem erf erfc exp exp10
    exp2 expm1 fabs fdim finite floor fma fmax fmin fmod frexp gamma hypot ilogb isinf isnan j0 j1 jn ldexp lgamma
    llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward pow pow10 remainder
    remquo rint round roundeven scalb scalbln scalbn significand sin sincos sinh sqrt tan tanh tgamma trunc y0 y1 yn
    ]],
}
