//! Jobs that are images, under a real podman where one is here and may run containers. The image is made on the spot
//! (a static busybox), so nothing is fetched; storage and settings are the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;

use super::harness::*;
use super::mesh::{Mesh, Plan};

const IMAGE: &str = "localhost/starling-test:1";
const OWN: &str = "localhost/starling-own:1";

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|f| f.join(name)).find(|p| p.is_file())
}

/// A podman with storage of its own; `program` is what a peer is given.
struct Podman {
    folder: TempDir,
    program: PathBuf,
}

impl Podman {
    /// The reason where this machine cannot run containers.
    fn make() -> Result<Self, String> {
        let podman = on_path("podman").ok_or("podman is not installed")?;
        let busybox = on_path("busybox").ok_or("busybox is not installed")?;
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        // Low limits, for a container where nobody may raise any; runc, where crun knows no hybrid cgroups.
        let runtime = if on_path("runc").is_some() { "runtime = \"runc\"\n" } else { "" };
        let conf = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1000:1000\", \"nproc=1000:1000\"]\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n{runtime}"
        );
        fs::write(here.join("containers.conf"), conf).expect("written");
        let program = here.join("podman");
        let script = format!(
            "#!/bin/sh\nexport CONTAINERS_CONF={0}/containers.conf\nexec {1} --root {0}/root --runroot {0}/runroot \"$@\"\n",
            here.display(),
            podman.display()
        );
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        let this = Self { folder, program };

        let root = this.folder.path().join("image/bin");
        fs::create_dir_all(&root).expect("a folder");
        fs::copy(&busybox, root.join("busybox")).expect("copied");
        for tool in ["sh", "echo", "sleep", "cat", "touch"] {
            std::os::unix::fs::symlink("busybox", root.join(tool)).expect("a link");
        }
        let archive = this.folder.path().join("image.tar");
        let packed = Command::new("tar")
            .args(["-c", "-C"])
            .arg(this.folder.path().join("image"))
            .arg("-f")
            .arg(&archive)
            .arg("bin")
            .status()
            .map_err(|e| format!("tar: {e}"))?;
        assert!(packed.success(), "tar: {packed}");
        let archive = archive.display().to_string();
        let own = r#"ENTRYPOINT ["/bin/echo", "its own"]"#;
        for args in [vec!["import", &archive, IMAGE], vec!["import", "--change", own, &archive, OWN]] {
            this.said(&args)?;
        }
        this.said(&["run", "--rm", "--network", "host", IMAGE, "/bin/echo", "here"])?;
        Ok(this)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(&self.program).args(args).stdin(Stdio::null()).output().expect("podman starts")
    }

    fn said(&self, args: &[&str]) -> Result<String, String> {
        let out = self.run(args);
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&out.stderr);
        Err(format!("podman {} here: {}", args[0], why.trim().lines().last().unwrap_or("no word")))
    }

    /// The containers that there are, by name.
    fn containers(&self) -> Vec<String> {
        let list = self.said(&["ps", "-a", "--format", "{{.Names}}"]).expect("a list");
        list.lines().map(str::to_owned).collect()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Also after a failure: no container stays, and its storage is unmounted before the folder goes.
        self.run(&["rm", "-f", "-a"]);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for point in mounts.lines().filter_map(|l| l.split(' ').nth(1)) {
            if Path::new(point).starts_with(self.folder.path()) {
                // Left behind, it would keep the folder from going; nothing else hangs on it.
                let _ = Command::new("umount").arg(point).status();
            }
        }
    }
}

fn peer(podman: &Podman) -> Plan {
    let mut plan = Plan::new("alpha");
    plan.tables = format!("[local]\ncontainer_runtime = \"{}\"\n", podman.program.display());
    plan
}

fn image(more: &str) -> String {
    format!("image: {IMAGE}\nresources: {{cpus: 1, memory: 100M}}\n{more}")
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Program, exit code, environment, checkpoint folder, the image's own entry point; a notice reaches the program, and
/// a cancel leaves no container; a peer that was killed finds its container again, and it ran once.
#[test]
fn images_run_under_podman() {
    let podman = match Podman::make() {
        Ok(podman) => podman,
        Err(why) => {
            eprintln!("not tried: images under podman: {why}");
            return;
        }
    };
    let mut mesh = Mesh::start([peer(&podman)]);
    let state = mesh.state("alpha").to_owned();
    let kept = mesh.folder.path().join("kept");
    fs::create_dir(&kept).expect("a folder");

    let spec = image(&format!(
        "run: |\n  echo rank $RANK of $WORLD_SIZE, $MINE\n  touch $CHECKPOINT_PATH/was-here\n  exit 7\nretries: 0\n\
         env: {{MINE: \"a b\"}}\ncheckpoint: {{path: {}, every: 1m}}\n",
        kept.display()
    ));
    let id = submit(&state, &spec);
    let job = ended(&state, &id);
    assert_eq!((&job["state"], &job["attempts"][0]["outcome"]), (&json!("failed"), &exited(7)), "{job:#}");
    assert_eq!(cli(&state, &["logs", &id]).ok().out.trim(), "rank 0 of 1, a b");
    assert!(kept.join("was-here").exists(), "the checkpoint folder is the host's");

    let id = submit(&state, &format!("image: {OWN}\nresources: {{cpus: 1, memory: 100M}}\n"));
    succeeded(&state, &id);
    assert_eq!(cli(&state, &["logs", &id]).ok().out.trim(), "its own");

    // The notice is a signal to what runs in the container; then the container is gone.
    let said = kept.join("said");
    let spec = image(&format!(
        "run: |\n  trap 'echo noticed >>{0}; exit 0' TERM\n  echo began >>{0}\n  while :; do sleep 0.1; done\n\
         checkpoint: {{path: {1}, every: 1m}}\n",
        said.display(),
        kept.display()
    ));
    let id = submit(&state, &spec);
    until("it began", || {
        (lines(&said) == ["began"]).then_some(()).ok_or_else(|| format!("{:?}", lines(&said)))
    });
    assert_eq!(podman.containers(), [format!("starling-{id}-1-0")]);
    cli(&state, &["cancel", &id]).ok();
    assert_eq!(ended(&state, &id)["state"], "cancelled");
    assert_eq!((lines(&said), podman.containers()), (vec!["began".to_owned(), "noticed".to_owned()], vec![]));

    // The peer dies: its container goes on, and the next process of that peer reads its end.
    let (count, go) = (kept.join("count"), kept.join("go"));
    let spec = image(&format!(
        "run: |\n  echo run >>{0}\n  while [ ! -e {1} ]; do sleep 0.1; done\n  exit 3\nretries: 0\n\
         checkpoint: {{path: {2}, every: 1m}}\non_lost_contact: {{grace: 60s}}\n",
        count.display(),
        go.display(),
        kept.display()
    ));
    let id = submit(&state, &spec);
    until("it began", || {
        (lines(&count) == ["run"]).then_some(()).ok_or_else(|| format!("{:?}", lines(&count)))
    });
    mesh.peer_mut("alpha").kill();
    assert_eq!(podman.containers().len(), 1, "it goes on");
    mesh.peer_mut("alpha").restart();
    in_state(&state, &id, &["running"]);
    fs::write(&go, "").expect("written");
    let job = ended(&state, &id);
    assert_eq!(of_attempts(&job, "outcome"), [exited(3)], "{job:#}");
    assert_eq!((lines(&count), podman.containers()), (vec!["run".to_owned()], vec![]));
}

/// The peer dies and does not come back: the guard ends the container at its deadline.
#[test]
fn a_container_does_not_outlive_its_lease() {
    let podman = match Podman::make() {
        Ok(podman) => podman,
        Err(why) => {
            eprintln!("not tried: images under podman: {why}");
            return;
        }
    };
    let mut mesh = Mesh::start([peer(&podman)]);
    let state = mesh.state("alpha").to_owned();
    let spec = image("run: while :; do sleep 0.1; done\non_lost_contact: {grace: 5s}\n");
    let id = submit(&state, &spec);
    in_state(&state, &id, &["running"]);
    until("its container runs", || {
        let there = podman.containers();
        (there.len() == 1).then_some(()).ok_or_else(|| format!("{there:?}"))
    });
    mesh.peer_mut("alpha").kill();
    until("the guard ended it", || {
        let there = podman.containers();
        there.is_empty().then_some(()).ok_or_else(|| format!("{there:?}"))
    });
}
