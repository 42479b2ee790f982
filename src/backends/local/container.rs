//! Attempts that are images: podman or docker, whichever is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Looks for podman, then docker, in these folders.
pub fn find(path: &std::ffi::OsStr) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(path).filter(|p| p.is_absolute()).collect();
    let candidates = ["podman", "docker"].into_iter().flat_map(|n| folders.iter().map(move |f| f.join(n)));
    candidates.into_iter().find(|p| p.is_file())
}

/// What one container is started with.
pub struct ContainerRun<'a> {
    /// Its name, one per rank.
    pub name: &'a str,
    /// The image.
    pub image: &'a str,
    /// Program and arguments; empty means the image's own entry point.
    pub argv: &'a [String],
    /// Environment inside.
    pub env: &'a [(String, String)],
    /// Folder that is shared with the host, and where it starts.
    pub workdir: &'a Path,
    /// Another shared folder: where checkpoints go.
    pub checkpoint: Option<&'a Path>,
    /// Files and folders that it may read: datasets.
    pub data: &'a [&'a Path],
    /// Real GPUs by index; none where they are declared only.
    pub gpus: &'a [u32],
}

/// The command line of `run`. Values of the environment are not in it, since everybody may read it: the
/// runtime takes them from its own environment by name.
pub fn command(runtime: &Path, run: &ContainerRun<'_>) -> Vec<String> {
    let mut argv: Vec<String> = vec![runtime.display().to_string(), "run".into(), "--rm".into()];
    argv.extend(["--name".into(), run.name.into(), "--network".into(), "host".into()]);
    for (key, value) in run.env {
        // These would change the runtime's client, so they are given openly.
        let open = matches!(key.as_str(), "PATH" | "HOME" | "USER" | "TMPDIR" | "LD_LIBRARY_PATH");
        argv.extend(["-e".into(), if open { format!("{key}={value}") } else { key.clone() }]);
    }
    for folder in std::iter::once(run.workdir).chain(run.checkpoint) {
        argv.extend(["-v".into(), format!("{0}:{0}", folder.display())]);
    }
    for path in run.data {
        argv.extend(["-v".into(), format!("{0}:{0}:ro", path.display())]);
    }
    argv.extend(["-w".into(), run.workdir.display().to_string()]);
    if !run.gpus.is_empty() {
        let list = run.gpus.iter().map(u32::to_string).collect::<Vec<_>>();
        if runtime.file_name().is_some_and(|n| n == "podman") {
            argv.extend(list.iter().flat_map(|g| ["--device".into(), format!("nvidia.com/gpu={g}")]));
        } else {
            argv.extend(["--gpus".into(), format!("\"device={}\"", list.join(","))]);
        }
    }
    // Behind the image they would be arguments of its own entry point, where it has one.
    if let Some(program) = run.argv.first() {
        argv.extend(["--entrypoint".into(), program.clone()]);
    }
    argv.push(run.image.into());
    argv.extend(run.argv.iter().skip(1).cloned());
    argv
}

/// Ends these containers and comes back when the runtime says that none of them is left.
pub fn remove(runtime: &Path, names: &[&str]) {
    let mut said = false;
    let mut left: Vec<&str> = names.to_vec();
    loop {
        left.retain(|name| !gone(runtime, name));
        if left.is_empty() {
            return;
        }
        if !std::mem::replace(&mut said, true) {
            eprintln!("starling guard: {} does not let go of {}", runtime.display(), left.join(", "));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn gone(runtime: &Path, name: &str) -> bool {
    // An error may mean that there is no such container; the list below is what counts.
    let _ = quiet(runtime, &["rm", "-f", name]).status();
    let filter = format!("name=^{name}$");
    let list = quiet(runtime, &["ps", "-a", "-q", "--filter", &filter]).stdout(Stdio::piped()).output();
    list.is_ok_and(|out| out.status.success() && out.stdout.trim_ascii().is_empty())
}

fn quiet(runtime: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(runtime);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_keeps_values_out_and_gpus_exact() {
        let env = [("TOKEN".to_owned(), "secret".to_owned()), ("PATH".to_owned(), "/x".to_owned())];
        let argv = ["train".to_owned(), "--fast".to_owned()];
        let run = ContainerRun {
            name: "starling-a-1-0",
            image: "img:1",
            argv: &argv,
            env: &env,
            workdir: Path::new("/w"),
            checkpoint: Some(Path::new("/c")),
            data: &[Path::new("/sets/a")],
            gpus: &[0, 3],
        };
        let docker = command(Path::new("/usr/bin/docker"), &run).join(" ");
        assert_eq!(
            docker,
            "/usr/bin/docker run --rm --name starling-a-1-0 --network host -e TOKEN -e PATH=/x -v /w:/w -v /c:/c -v /sets/a:/sets/a:ro -w /w \
             --gpus \"device=0,3\" --entrypoint train img:1 --fast"
        );
        let podman = command(Path::new("/usr/bin/podman"), &run).join(" ");
        assert!(podman.contains("--device nvidia.com/gpu=0 --device nvidia.com/gpu=3"), "{podman}");
        let own = command(Path::new("/usr/bin/podman"), &ContainerRun { argv: &[], ..run }).join(" ");
        assert!(own.ends_with(" img:1") && !own.contains("--entrypoint"), "the image's own: {own}");
    }

    #[test]
    fn podman_comes_before_docker() {
        let dir = tempfile::tempdir().expect("temp folder");
        assert_eq!(find(dir.path().as_os_str()), None);
        std::fs::write(dir.path().join("docker"), "").expect("writes");
        assert_eq!(find(dir.path().as_os_str()), Some(dir.path().join("docker")));
        std::fs::write(dir.path().join("podman"), "").expect("writes");
        assert_eq!(find(dir.path().as_os_str()), Some(dir.path().join("podman")));
    }
}
