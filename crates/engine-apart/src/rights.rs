//! What the process of an engine gives up before it reads the first byte of a model.
//!
//! In this order, and while there is one thread, since each of them holds for a thread and those that it starts: its
//! life without the server; new rights by programs that it would run; files, TCP, signals and abstract sockets
//! (Landlock); and every system call that computing doesn't need (seccomp). A call that isn't in the list fails as if
//! the kernel didn't have it.

use crate::messages::AllowedPaths;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    make_bitflags, path_beneath_rules,
};
use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::io;

/// What is asked of Landlock; older kernels have a part of it.
const LANDLOCK: ABI = ABI::V6;
/// What runtimes read to know their processor.
const ABOUT_PROCESSORS: [&str; 2] = ["/proc/cpuinfo", "/sys/devices/system/cpu"];

/// Ends with the server, whatever ends that.
pub(crate) fn end_with(parent: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    // It may have ended before the line above.
    if now == parent { Ok(()) } else { Err(io::Error::other("the server has ended")) }
}

/// Gives up all that the kernel lets it give up, and says what that is.
pub(crate) fn give_up(allowed: &AllowedPaths) -> String {
    let said = |what: &str, outcome: Result<String, String>| match outcome {
        Ok(extent) => format!("{what}: {extent}"),
        Err(reason) => format!("{what}: not in force ({reason})"),
    };
    let programs = rustix::thread::set_no_new_privs(true).map(|()| "in force".to_owned());
    [
        said("no_new_privs", programs.map_err(|error| error.to_string())),
        said("Landlock", landlock(allowed)),
        said("seccomp", seccomp().map(|()| "in force".to_owned())),
    ]
    .join(", ")
}

fn landlock(allowed: &AllowedPaths) -> Result<String, String> {
    let read: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let write = read | make_bitflags!(AccessFs::{WriteFile | Truncate | RemoveFile | RemoveDir | MakeReg | MakeDir});
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(ABOUT_PROCESSORS, read))?
            .add_rules(path_beneath_rules(&allowed.read, read))?
            .add_rules(path_beneath_rules(&allowed.write, write))?
            .restrict_self()
    };
    match restrict().map_err(|error: landlock::RulesetError| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced => Ok("in force".into()),
        RulesetStatus::PartiallyEnforced => Ok("in force as far as this kernel has it".into()),
        RulesetStatus::NotEnforced => Err("the kernel doesn't have it".into()),
    }
}

fn seccomp() -> Result<(), String> {
    let architecture = std::env::consts::ARCH.try_into().map_err(|_| "it isn't known for this processor")?;
    let (unknown, allow) = (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
    let filter = rules().and_then(|rules| SeccompFilter::new(rules, unknown, allow, architecture));
    let program = filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

/// The calls that are allowed, some with conditions on an argument.
fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let own = u64::from(std::process::id());
    let name = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA].map(|number| number as u64);
    let threads = libc::CLONE_THREAD as u64;
    for (call, argument, operator, values) in [
        // Threads, not processes. `clone3`, whose flags can't be seen, isn't there: the C library then takes this one.
        (libc::SYS_clone, 0, Op::MaskedEq(threads), &[threads][..]),
        // To itself, for `abort`.
        (libc::SYS_tgkill, 0, Op::Eq, &[own]),
        // Not its life without the server, which is also set with this one.
        (libc::SYS_prctl, 0, Op::Eq, &name),
        // To look, not to change: the third argument is what to set.
        (libc::SYS_prlimit64, 2, Op::Eq, &[0]),
        // Whether something is a terminal.
        (libc::SYS_ioctl, 1, Op::Eq, &[libc::TCGETS]),
    ] {
        let rule = |value: &u64| {
            SeccompRule::new(vec![SeccompCondition::new(argument, ArgLen::Qword, operator.clone(), *value)?])
        };
        rules.insert(call, values.iter().map(rule).collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

/// Memory, threads, time, files, and messages over sockets that are there: nothing makes a socket or a process.
#[rustfmt::skip]
const CALLS: &[i64] = &[
    libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise,
    libc::SYS_mlock, libc::SYS_munlock, libc::SYS_mincore, libc::SYS_membarrier, libc::SYS_get_mempolicy,
    libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_set_tid_address, libc::SYS_gettid,
    libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler, libc::SYS_getcpu, libc::SYS_getpriority,
    libc::SYS_exit, libc::SYS_exit_group, libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_times, libc::SYS_getrandom, libc::SYS_getrusage, libc::SYS_sysinfo,
    libc::SYS_uname, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_openat, libc::SYS_close, libc::SYS_read, libc::SYS_readv, libc::SYS_pread64, libc::SYS_write,
    libc::SYS_writev, libc::SYS_pwrite64, libc::SYS_lseek, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx,
    libc::SYS_fstatfs, libc::SYS_statfs, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat,
    libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_fcntl, libc::SYS_dup, libc::SYS_ftruncate, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_flock, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2,
    libc::SYS_mkdirat, libc::SYS_linkat, libc::SYS_utimensat, libc::SYS_umask, libc::SYS_fchmod,
    libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_splice, libc::SYS_fadvise64,
    libc::SYS_recvmsg, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_sendto, libc::SYS_ppoll,
    // Older names of some of them.
    #[cfg(target_arch = "x86_64")] libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")] libc::SYS_open,
    #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_rename,
    #[cfg(target_arch = "x86_64")] libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll,
    #[cfg(target_arch = "x86_64")] libc::SYS_time,
    #[cfg(target_arch = "x86_64")] libc::SYS_getrlimit,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::{TcpListener, UdpSocket};
    use std::process::Command;

    #[test]
    fn files_outside_sockets_and_processes_are_out_of_reach_and_threads_are_not() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&inside, &outside] {
            fs::write(folder.path().join("file"), "x").unwrap();
        }
        let cache = tempfile::tempdir().unwrap();
        let allowed = AllowedPaths { read: vec![inside.path().into()], write: vec![cache.path().into()] };
        // All of it holds for the thread that gives it up, and for those that it starts.
        std::thread::spawn(move || {
            let said = give_up(&allowed);
            // Some kernels don't have it: then it must say so.
            let has_landlock = said.contains("Landlock: in force");
            assert!(has_landlock || said.contains("Landlock: not in force"), "{said}");
            assert!(said.contains("no_new_privs: in force") && said.contains("seccomp: in force"), "{said}");
            assert_eq!(fs::read(inside.path().join("file")).unwrap(), b"x");
            fs::write(cache.path().join("new"), "x").unwrap();
            fs::rename(cache.path().join("new"), cache.path().join("newer")).unwrap();
            if has_landlock {
                assert!(fs::read(outside.path().join("file")).is_err());
                assert!(fs::write(inside.path().join("new"), "x").is_err());
                assert!(fs::read("/etc/passwd").is_err());
            }
            assert!(std::os::unix::fs::symlink("/", cache.path().join("link")).is_err());
            assert!(TcpListener::bind("127.0.0.1:0").is_err() && UdpSocket::bind("127.0.0.1:0").is_err());
            assert!(Command::new("/bin/true").spawn().is_err());
            assert!(rustix::process::set_parent_process_death_signal(None).is_err());
            let parent = rustix::process::getppid().unwrap();
            assert!(rustix::process::test_kill_process(parent).is_err());
            let reads = std::thread::spawn(move || fs::read(outside.path().join("file")).is_ok()).join().unwrap();
            assert_eq!(reads, !has_landlock, "what holds for a thread holds for those that it starts");
        })
        .join()
        .unwrap();
    }
}
