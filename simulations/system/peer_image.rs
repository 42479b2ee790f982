//! The peer's image of a static binary, run as deploy/kubernetes/peer.yaml runs it: nobody's user, a root that cannot be
//! written, no rights, a volume that only its group may write. There is nothing else in it, no shell and no libc.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};
use super::podman::{IMAGE, PEER, Podman, packed, static_binary, volume};

const BINARY: &str = "/usr/local/bin/starling";
const VOLUME: &str = "/var/lib/starling";

/// An executable that needs no loader and no library: it has no such program header.
fn is_static(elf: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| -> u64 {
        elf[at..at + bytes].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b))
    };
    assert_eq!((&elf[..4], elf[4]), (b"\x7fELF".as_slice(), 2), "a program of 64 bits");
    let (table, size, count) = (number(0x20, 8) as usize, number(0x36, 2) as usize, number(0x38, 2) as usize);
    const PT_INTERP: u64 = 3;
    (0..count).all(|n| number(table + n * size, 4) != PT_INTERP)
}

/// Status of an answer over plain HTTP.
fn status(address: &str, path: &str) -> String {
    let mut wire = TcpStream::connect(address).expect("it listens");
    write!(wire, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").expect("asked");
    let mut answer = String::new();
    wire.read_to_string(&mut answer).expect("answered");
    answer.lines().next().unwrap_or_default().to_owned()
}

/// The peer in its container; dropping the podman ends it.
struct Boxed<'a> {
    podman: &'a Podman,
    state: PathBuf,
    listen: String,
}

/// What it is started with.
fn configure(etc: &Path, nodes: &str) {
    let text = format!(
        "name = \"boxed\"\nlisten = \"127.0.0.1:0\"\n{nodes}[api]\nlisten = \"127.0.0.1:0\"\n\
         [timing]\nrenew_every = \"500ms\"\nmargin = \"1s\"\nprobe_every = \"never\"\n"
    );
    fs::write(etc.join("starling.toml"), text).expect("a configuration");
}

impl Boxed<'_> {
    fn start<'a>(podman: &'a Podman, folder: &Path, join: &str) -> Boxed<'a> {
        let (state, etc) = (volume(folder, "state"), folder.join("etc"));
        fs::create_dir(&etc).expect("a folder");
        configure(&etc, "");
        let (volume, config) =
            (format!("{}:{VOLUME}", state.display()), format!("{}:/etc/starling:ro", etc.display()));
        let join = format!("STARLING_JOIN={join}");
        let args = [
            ["run", "-d", "--name", "boxed", "--network", "host"].as_slice(),
            &["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"],
            &["-v", &volume, "-v", &config, "-e", &join, PEER],
            &["up", "--config", "/etc/starling/starling.toml", "--state", VOLUME],
        ];
        podman.said(&args.concat()).expect("it starts");
        let mut this = Boxed { podman, state, listen: String::new() };
        this.wait_up();
        this
    }

    fn words(&self) -> String {
        let out = self.podman.run(&["logs", "boxed"]);
        [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat()
    }

    fn wait_up(&mut self) {
        let about = until("the peer in the container answers", || {
            let running = self.podman.said(&["inspect", "boxed", "--format", "{{.State.Running}}"])?;
            assert_eq!(running.trim(), "true", "{}", self.words());
            get(&self.state, "/v1/peer")
        });
        self.listen = about["listen"].as_str().expect("an address").to_owned();
    }

    /// `starling ARGS` in the container, with nothing but what the image says.
    fn exec(&self, args: &[&str]) -> String {
        let line = [["exec", "boxed", "starling"].as_slice(), args].concat();
        self.podman.said(&line).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", self.words()))
    }

    fn stop(&self) {
        let begun = Instant::now();
        self.podman.said(&["stop", "-t", "60", "boxed"]).expect("it stops");
        // A peer that leaves its jobs waits for nothing; SIGKILL would come after terminationGracePeriodSeconds.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}\n{}", begun.elapsed(), self.words());
        let code = self.podman.said(&["inspect", "boxed", "--format", "{{.State.ExitCode}}"]);
        assert_eq!(code.as_deref().map(str::trim), Ok("0"), "{}", self.words());
    }
}

#[test]
fn the_image_of_a_static_binary_is_a_peer() {
    let Some(podman) = packed("the peer's image") else { return };
    let binary = static_binary().expect("it is packed");
    assert!(is_static(&fs::read(&binary).expect("the binary that STARLING_STATIC names")));
    assert!(!is_static(&fs::read(STARLING).expect("this build")), "the check sees a loader");

    let mesh = Mesh::start([Plan::new("alpha")]);
    let folder = tempfile::tempdir().expect("a folder");
    // By name: resolving one is libc's work.
    let join = mesh.peer("alpha").token().replace("127.0.0.1", "localhost");
    let mut boxed = Boxed::start(&podman, folder.path(), &join);
    until("both are alive", || {
        let seen = (mesh.peer("alpha").sees("boxed")?, boxed.exec(&["clusters"]));
        if seen.0 == "alive" && seen.1.contains("alpha") { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    let words = boxed.words();
    let api = words.lines().find_map(|l| l.trim().strip_prefix("API ")?.rsplit_once(", ").map(|(_, a)| a));
    assert!(status(api.unwrap_or_else(|| panic!("{words}")), "/healthz").contains(" 200 "));
    assert!(!boxed.exec(&["doctor"]).contains("isolated"));
    boxed.exec(&["peer", "--state", VOLUME]);

    // Nothing could run in it, so it offers nothing.
    assert!(words.contains("WARN") && words.contains("no /bin/sh"), "{words}");
    let me = get(&boxed.state, "/v1/clusters").expect("clusters");
    let me = me["clusters"]
        .as_array()
        .and_then(|c| c.iter().find(|c| c["name"] == "boxed"))
        .expect("itself")
        .clone();
    assert_eq!(me["nodes"], json!([]), "{me:#}");

    // Told to stop it stops, and its volume is what it was; whom it joined is not asked again.
    boxed.stop();
    let pool = "[[nodes]]\nname = \"pool\"\ncpus = 2\nmemory = \"1G\"\n";
    configure(&folder.path().join("etc"), pool);
    podman.said(&["start", "boxed"]).expect("it starts again");
    boxed.wait_up();
    until("it is back", || {
        let seen = mesh.peer("alpha").sees("boxed")?;
        if seen == "alive" { Ok(()) } else { Err(seen) }
    });

    // Declared, it runs what it has: the binary alone, under a guard of it. There is no shell for another.
    let here = "resources: {cpus: 1, memory: 10M}\nplacement: {clusters: [boxed]}\nretries: 0\n";
    let id = submit(&boxed.state, &format!("run: [{BINARY}, --version]\n{here}"));
    succeeded(&boxed.state, &id);
    assert!(boxed.exec(&["logs", &id]).starts_with("starling "));
    let id = submit(mesh.state("alpha"), &format!("run: exit 0\n{here}"));
    until("it says what is missing", || {
        let said = job(mesh.state("alpha"), &id)?["reason"].as_str().unwrap_or_default().to_owned();
        if said.contains("/bin/sh") { Ok(()) } else { Err(said) }
    });
    cli(mesh.state("alpha"), &["cancel", &id]).ok();
    // The other way: submitted in the container, run outside.
    let id =
        submit(&boxed.state, "run: echo outside\nresources: {gpus: 1}\nplacement: {clusters: [alpha]}\n");
    succeeded(&boxed.state, &id);
    assert_eq!(boxed.exec(&["logs", &id]).trim(), "outside");

    boxed.stop();

    // As a guard: an init container puts the binary beside a job's own image, which has another libc or none.
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("an emptyDir is everybody's");
    let mount = format!("{}:/starling", shared.display());
    let run = ["run", "--rm", "--network", "host", "--cap-drop", "all", "-v", &mount];
    let install = [run.as_slice(), &["--read-only", PEER, "guard", "/starling", "--install"]].concat();
    podman.said(&install).expect("installed");
    let asked = [run.as_slice(), &["--user", "1234:1234", IMAGE, "/starling/starling", "--version"]].concat();
    assert!(podman.said(&asked).expect("runs").starts_with("starling "));
    assert_eq!(
        json!(fs::read(shared.join("starling")).expect("there").len()),
        json!(fs::metadata(&binary).expect("there").len())
    );
}
