//! An attempt's own cgroup (version 2), where the system lets us make one: the surest way to end a whole tree.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup that was made for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one under the group of this process; none where the system does not allow it.
    pub fn create(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own_group(&mounts, &groups)?.join(name);
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        // Without cgroup.kill (Linux before 5.14) it would be of no use.
        if group.0.join("cgroup.kill").exists() {
            return Some(group);
        }
        group.remove();
        None
    }

    /// One that was made before.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves the calling process into it.
    pub fn join(&self) -> std::io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// Kills all in it, also what is forked meanwhile.
    pub fn kill(&self) {
        // Gone is as good; what could not be killed is seen in `empty`.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Nobody is in it, or it is gone.
    pub fn empty(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.events"))
            .map_or(true, |e| e.lines().any(|l| l == "populated 0"))
    }

    /// Removes it; it must be empty.
    pub fn remove(&self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn own_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|l| l.strip_prefix("0::"))?;
    if own.split('/').any(|part| part == "..") {
        return None;
    }
    let point = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup2 ").then(|| left.split(' ').nth(4))?
    })?;
    Some(Path::new(point).join(own.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_beside_version_1() {
        let mounts = "34 25 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      42 25 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let groups = "1:cpu:/\n0::/system.slice/starling.service\n";
        let found = own_group(mounts, groups).expect("found");
        assert_eq!(found, Path::new("/sys/fs/cgroup/unified/system.slice/starling.service"));
        assert_eq!(own_group(mounts, "1:cpu:/\n"), None);
        assert_eq!(own_group("", groups), None);
        assert_eq!(own_group(mounts, "0::/../../x\n"), None);
    }
}
