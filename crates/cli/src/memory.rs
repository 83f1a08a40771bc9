//! How much memory this process may use.

use std::fs;
use std::path::Path;

/// The machine's memory, or what the process's control groups allow it if that is less. `u64::MAX` where the system says
/// neither.
pub fn limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(total);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let allowed = allowed(&groups, Path::new("/sys/fs/cgroup"));
    machine.into_iter().chain(allowed).min().unwrap_or(u64::MAX)
}

/// From the text of `/proc/meminfo`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// The least that a group of the process, or one that it is in, allows: from the text of `/proc/self/cgroup`. In a
/// container the folders are those of its own group, whatever the text calls it.
fn allowed(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let inner = folder.join(path);
        let within = inner.ancestors().take_while(|group| group.starts_with(&folder));
        within.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16384));
        assert!(limit() > 1 << 20);
    }

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join(file), text).unwrap();
        };
        assert_eq!(allowed("0::/pod/box\n", root.path()), None);
        write("pod/box", "memory.max", "max\n");
        assert_eq!(allowed("0::/pod/box\n", root.path()), None);
        write("pod", "memory.max", "4096\n");
        assert_eq!(allowed("0::/pod/box\n", root.path()), Some(4096));
        write("memory/old", "memory.limit_in_bytes", "1024\n");
        assert_eq!(allowed("5:cpu,memory:/old\n4:pids:/old\n0::/pod\n", root.path()), Some(1024));
        write("", "memory.max", "512\n");
        assert_eq!(allowed("0::/elsewhere/of/the/host\n", root.path()), Some(512));
    }
}
