//! A peer's disk: who may read it, what is said where it is damaged or full, and that jobs outlive the latter.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::harness::*;
use super::mesh::{Mesh, PeerProcess, Plan, SmallDisk};

/// Everything at and below a folder, but what links name.
fn all(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    if fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
        for entry in fs::read_dir(path).expect("reads").flatten() {
            all(&entry.path(), found);
        }
    }
}

fn open_to_others(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    all(state, &mut found);
    let mode = |path: &Path| fs::symlink_metadata(path).map_or(0, |m| m.permissions().mode() & 0o777);
    let open = found.iter().filter(|path| mode(path) & 0o077 != 0);
    open.map(|path| format!("{:o} {}", mode(path), path.display())).collect()
}

/// The store holds every job's environment; an umask of 022 made it readable by everybody.
#[test]
fn nobody_else_reads_what_a_peer_keeps() {
    let folder = tempfile::tempdir().expect("a folder");
    // The most open of all umasks; the peer alone must see to it.
    let binary = folder.path().join("open-starling");
    fs::write(&binary, format!("#!/bin/sh\numask 0\nexec {STARLING} \"$@\"\n")).expect("a program");
    fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("ours");
    let plan = Plan { binary, api: "127.0.0.1:0", ..Plan::new("alpha") };
    let mut peer = PeerProcess::start(folder.path(), plan, None);
    let state = peer.state.clone();
    succeeded(&state, &submit(&state, "env: {SECRET: hunter2}\nrun: [\"true\"]\n"));
    for name in ["store.redb", "store.0.log", "format", "lock", "identity", "events", "attempts", "api.token"]
    {
        assert!(state.join(name).exists(), "{name}");
    }
    assert_eq!(open_to_others(&state), Vec::<String>::new(), "as it was made");

    // As an older version left it.
    assert!(peer.terminate().success());
    let mut found = Vec::new();
    all(&state, &mut found);
    for path in &found {
        let mode = fs::symlink_metadata(path).expect("there").permissions().mode();
        let wider = if mode & 0o100 != 0 { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(wider)).expect("ours");
    }
    peer.restart();
    let inside = state.join("attempts");
    let below = |text: &String| text.contains(&format!("{}/", inside.display()));
    let open: Vec<_> = open_to_others(&state).into_iter().filter(|t| !below(t)).collect();
    // Nobody comes below a closed folder; what jobs wrote stays as they wanted it.
    let closed = |text: &String| ["/events/", "/contacts/"].iter().any(|f| text.contains(f));
    assert_eq!(
        open.into_iter().filter(|t| !closed(t)).collect::<Vec<_>>(),
        Vec::<String>::new(),
        "as it was found"
    );
    let words = peer.words();
    for secret in ["identity/ca.key", "identity/peer.key", "api.token"] {
        assert!(
            words.contains(secret) && words.contains("others than its owner could read it"),
            "{secret}: {words}"
        );
    }
}

/// A log that was deleted or whose header was damaged was taken for one that was never begun: all was lost in silence.
#[test]
fn a_store_that_lost_a_part_is_refused_in_words() {
    let mut mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha").to_owned();
    succeeded(&state, &submit(&state, "run: [\"true\"]\n"));
    mesh.peers[0].kill();
    let (log, database) = (state.join("store.0.log"), state.join("store.redb"));
    let (whole, rows) = (fs::read(&log).expect("a log"), fs::read(&database).expect("a database"));
    let mut flipped = whole.clone();
    flipped[12] ^= 1;
    let mut pages = rows.clone();
    pages[4_096..].iter_mut().for_each(|b| *b ^= 0x5a);
    type Case<'a> = (&'a str, Option<&'a [u8]>, &'a [u8]);
    let cases: [Case<'_>; 3] =
        [("deleted", None, &rows), ("header", Some(&flipped), &rows), ("database", Some(&whole), &pages)];
    for (what, log_bytes, database_bytes) in cases {
        match log_bytes {
            None => fs::remove_file(&log).expect("a log"),
            Some(bytes) => fs::write(&log, bytes).expect("written"),
        }
        fs::write(&database, database_bytes).expect("written");
        let out = cli(&state, &["up"]);
        assert_eq!(out.code, 74, "{what}: {out:?}");
        assert!(out.err.contains("is damaged") && out.err.contains("member remove"), "{what}: {out:?}");
        assert!(!out.err.contains("panicked") && !out.err.contains("backtrace"), "{what}: {out:?}");
    }
    fs::write(&log, &whole).expect("written");
    fs::write(&database, &rows).expect("written");
    mesh.peers[0].restart();
}

/// A renewal was a new file, which a full disk refuses: the guards ended every healthy job after its grace.
#[test]
fn a_full_disk_ends_no_running_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 32) else {
        eprintln!("not tried: only root may mount a small file system");
        return;
    };
    let mut plan = Plan::new("alpha");
    plan.tables = "[limits]\ndisk_reserve = \"1M\"\n".into();
    let mut peer = PeerProcess::start(&disk.0, plan, None);
    let state = peer.state.clone();
    let id = submit(
        &state,
        "name: runs\nresources: {gpus: 1}\non_lost_contact: {grace: 4s}\nrun: [sleep, \"600\"]\n",
    );
    in_state(&state, &id, &["running"]);
    let leases = || {
        let found = fs::read_dir(state.join("contacts")).expect("reads").flatten().map(|e| e.path());
        found.filter(|p| p.extension().is_some_and(|e| e == "lease")).collect::<Vec<_>>()
    };
    until("a renewal was shown", || leases().first().map(|_| ()).ok_or("none".into()));
    let mut filler = fs::File::create(disk.0.join("filler")).expect("a file");
    for chunk in [64 << 10, 4 << 10, 1] {
        while std::io::Write::write_all(&mut filler, &vec![7_u8; chunk]).is_ok() {}
    }
    assert!(fs::write(disk.0.join("more"), "x").is_err(), "the disk is full");
    until("the peer says that its disk is full", || {
        let told = cli(&state, &["peer"]);
        if told.out.contains("disk full") { Ok(()) } else { Err(format!("{told:?}")) }
    });
    // Well past its grace by then, by what the guard itself reads.
    let read = |path: &PathBuf| {
        let text: serde_json::Value =
            serde_json::from_slice(&fs::read(path).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        text["sent_at"].as_u64().ok_or("no time".to_owned())
    };
    let begun = leases().iter().filter_map(|p| read(p).ok()).max().expect("a renewal");
    until("renewals go on for three graces", || {
        let newest = leases().iter().filter_map(|p| read(p).ok()).max().unwrap_or(0);
        if newest > begun + 12_000_000 { Ok(()) } else { Err(format!("{newest} after {begun}")) }
    });
    let shown = job(&state, &id).expect("it answers");
    assert_eq!((&shown["state"], &shown["losses"]), (&"running".into(), &0.into()), "{shown:#}");
    drop(filler);
    fs::remove_file(disk.0.join("filler")).expect("removed");
    peer.revive();
    cli(&state, &["cancel", &id]).ok();
    assert_eq!(ended(&state, &id)["state"], "cancelled");
    drop(peer);
}

/// Each code as docs/reference/cli.md says.
#[test]
fn up_ends_with_the_code_of_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").to_string();
    let out = cli(&folder.path().join("a"), &["up", "--listen", &port]);
    assert!(out.code == 5 && out.err.contains(&port), "{out:?}");

    let file = folder.path().join("file");
    fs::write(&file, "x").expect("written");
    let out = cli(&file.join("state"), &["up"]);
    assert!(out.code == 74 && out.err.contains("cannot be used") && !out.err.contains("batch"), "{out:?}");

    let out = cli(&folder.path().join("b"), &["up", "--join", "stl1-nonsense@127.0.0.1:1"]);
    assert!(out.code == 2 && out.err.contains("join token"), "{out:?}");
    assert!(!folder.path().join("b").exists(), "nothing was made");

    let mesh = Mesh::start([Plan::new("alpha")]);
    let made = cli(mesh.state("alpha"), &["--json", "token", "create"]).ok().json();
    let nobody = format!("{}@127.0.0.1:1", made["token"].as_str().expect("a token"));
    let out = cli(&folder.path().join("c"), &["up", "--join", &nobody]);
    assert_eq!(out.code, 4, "{out:?}");
}

/// A mistake quoted the whole address.
#[test]
fn a_mistake_in_a_configuration_tells_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("starling.toml");
    let text = "region = \"https://u:regpass1@h/?token=regtok2\"\n\
                [trace]\notlp = \"htp://user:otlppass3@h/?q=otlpquery4\"\n\
                [[alerts.webhooks]]\nname = \"a\"\nurl = \"http://user:hookpass777@h:x/secretpath5?token=hooktok888\"\n\
                headers = {X-Door = \"hdrsecret6\\n\"}\n";
    fs::write(&file, text).expect("written");
    let (state, path) = (folder.path().join("state"), file.to_str().expect("a path"));
    for args in
        [&["config", "check", path][..], &["--json", "config", "check", path], &["up", "--config", path]]
    {
        let out = cli(&state, args);
        let told = out.out.clone() + &out.err;
        for key in ["region", "trace.otlp", "url", "X-Door"] {
            assert!(told.contains(key), "{key}: {told}");
        }
        for secret in [
            "regpass1",
            "regtok2",
            "otlppass3",
            "otlpquery4",
            "hookpass777",
            "hooktok888",
            "secretpath5",
            "hdrsecret6",
        ] {
            assert!(!told.contains(secret), "{secret}: {told}");
        }
    }
}
