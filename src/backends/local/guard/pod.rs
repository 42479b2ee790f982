//! A guard in a pod shares no folder with its peer: it makes its own of what the peer put into a Secret.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::environment::set;
use super::super::files::{AttemptDir, Binding, GuardSpec, read_json, write_json};

/// What Kubernetes tells a pod of an Indexed Job.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Port of the first node of a gang; each pod has an address of its own.
const MASTER_PORT: u16 = 29_500;

/// Puts a copy of this binary into a folder that the other containers of the pod see.
pub fn install(dir: &Path) -> io::Result<()> {
    let (aside, to) = (dir.join("starling.new"), dir.join("starling"));
    fs::copy("/proc/self/exe", &aside)?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
    fs::rename(aside, to)
}

/// The attempt's folder in `work`, of `spec.json` and `binding` in `secret`; which rank it is says the environment.
pub fn folder(secret: &Path, work: &Path) -> io::Result<AttemptDir> {
    let mut spec: GuardSpec = read_json(&secret.join("spec.json"))?;
    let binding: Binding = read_json(&secret.join("binding"))?;
    let index: u32 = std::env::var(INDEX_VARIABLE).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let dir = AttemptDir::new(work.join("attempt"));
    spec.first_rank = index;
    if let Some(remote) = &mut spec.remote {
        remote.part = if remote.part.is_empty() { String::new() } else { format!("node-{index}") };
        remote.line = secret.join("line.json");
        // Where a container's last word is left is known to the container alone.
        remote.last_word = std::env::var_os("STARLING_LAST_WORD").map(Into::into);
    }
    if let Some(rank) = spec.ranks.first_mut() {
        for variable in ["STARLING_RANK", "RANK", "NODE_RANK"] {
            set(&mut rank.env, variable, index);
        }
    }
    if spec.workdir.as_os_str().is_empty() {
        // The image's own.
        spec.workdir = std::env::current_dir()?;
    }
    // False where this container was started again: then the right to run is taken.
    dir.prepare(&spec, binding)?;
    Ok(dir)
}

/// Writes down where the gang's first node is.
pub fn address(dir: &AttemptDir, spec: &mut GuardSpec, master: Option<&str>) -> io::Result<()> {
    let Some(master) = master else { return Ok(()) };
    for rank in &mut spec.ranks {
        for (name, value) in [("MASTER_ADDR", master.to_owned()), ("MASTER_PORT", MASTER_PORT.to_string())] {
            if !rank.env.iter().any(|(n, _)| n == name) {
                set(&mut rank.env, name, value);
            }
        }
    }
    write_json(&dir.file("spec.json"), spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_copied_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        install(folder.path()).expect("installs");
        let own = fs::metadata("/proc/self/exe").expect("this binary").len();
        let copy = fs::metadata(folder.path().join("starling")).expect("a copy");
        assert_eq!((copy.len(), copy.permissions().mode() & 0o111), (own, 0o111));
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1, "nothing is left beside");
    }
}
