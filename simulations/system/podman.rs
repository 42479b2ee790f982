//! A podman with storage and settings of its own, and the images of the tests; nothing is fetched.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A shell and a few tools.
pub const IMAGE: &str = "localhost/starling-test:1";
/// The same with an entry point of its own.
pub const OWN: &str = "localhost/starling-own:1";

/// The peer's own.
pub const PEER: &str = "localhost/starling:1";

/// Its user and group.
pub const NOBODY: u32 = 65_532;

/// A static binary to make the peer's image of; `deploy/test static` builds it and names it here.
pub fn static_binary() -> Option<PathBuf> {
    std::env::var_os("STARLING_STATIC").map(PathBuf::from)
}

/// The peer's image of the static binary that is given. Where there is none or it cannot be run, says that `what` was
/// not tried.
pub fn packed(what: &str) -> Option<Podman> {
    let made = match static_binary() {
        None => Err("STARLING_STATIC names no static binary (deploy/test static builds one)".to_owned()),
        Some(_) if !rustix::process::geteuid().is_root() => Err("only root can make its volumes".to_owned()),
        Some(binary) => Podman::make().map(|podman| (podman, binary)),
    };
    match made {
        Err(why) => {
            println!("not tried: {what}: {why}");
            None
        }
        Ok((podman, binary)) => {
            podman.pack(&binary).expect("the image is built");
            Some(podman)
        }
    }
}

/// A folder as a volume with `fsGroup` is: root's, and its group may write.
pub fn volume(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir(&path).expect("a folder");
    chown(&path, Some(0), Some(NOBODY)).expect("the group's");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2775)).expect("it may write");
    path
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|f| f.join(name)).find(|p| p.is_file())
}

/// A podman with storage of its own; `program` is what a peer is given.
pub struct Podman {
    folder: TempDir,
    pub program: PathBuf,
}

impl Podman {
    /// The reason where this machine cannot run containers.
    pub fn make() -> Result<Self, String> {
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

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(&self.program).args(args).stdin(Stdio::null()).output().expect("podman starts")
    }

    pub fn said(&self, args: &[&str]) -> Result<String, String> {
        let out = self.run(args);
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&out.stderr);
        Err(format!("podman {} here: {}", args[0], why.trim().lines().last().unwrap_or("no word")))
    }

    /// The peer's image as deploy/Containerfile makes it of a static binary that is there.
    pub fn pack(&self, binary: &Path) -> Result<(), String> {
        let out = self.folder.path().join("out");
        for folder in ["root/usr/local/bin", "root/etc/starling", "root/tmp", "var/starling"] {
            fs::create_dir_all(out.join(folder)).expect("a folder");
        }
        fs::set_permissions(out.join("root/tmp"), fs::Permissions::from_mode(0o1777)).expect("everybody's");
        fs::copy(binary, out.join("root/usr/local/bin/starling")).expect("copied");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/Containerfile");
        let (file, out) = (file.display().to_string(), out.display().to_string());
        self.said(&["build", "-f", &file, "--build-arg", "FROM=given", "-t", PEER, &out]).map(|_| ())
    }

    /// The containers that there are, by name.
    pub fn containers(&self) -> Vec<String> {
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
