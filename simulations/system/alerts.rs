//! Incidents and what people are told of them, and the support bundle: real peers.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use super::harness::*;
use super::mesh::{Mesh, Plan};

/// Takes every POST and gives its body.
fn receiver() -> (SocketAddr, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let (sender, taken) = channel();
    // Ends with the test's process; it waits in accept and holds nothing.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap_or(0);
                }
                line.clear();
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() {
                continue;
            }
            // Taken is what was answered.
            let _ = reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n");
            if sender.send(serde_json::from_slice(&body).unwrap_or_default()).is_err() {
                return;
            }
        }
    });
    (at, taken)
}

fn incident(mesh: &Mesh, at: &str, kind: &str, subject: &str) -> Result<Value, String> {
    let list = get(mesh.state(at), "/v1/incidents")?;
    let found = |key: &str| {
        list[key].as_array()?.iter().find(|i| i["kind"] == kind && i["subject"] == subject).cloned()
    };
    found("open").ok_or_else(|| format!("{list:#}"))
}

fn job<'a>(incident: &'a Value, id: &str) -> Result<&'a Value, String> {
    let jobs = incident["jobs"]["jobs"].as_array();
    jobs.and_then(|l| l.iter().find(|j| j["id"] == id)).ok_or_else(|| format!("{incident:#}"))
}

#[test]
fn a_killed_peer_is_one_incident_with_its_jobs_and_is_told_once() {
    let (hook, taken) = receiver();
    let tables = format!(
        "[alerts]\nnotify_after = \"1s\"\nrecover_after = \"2s\"\nstagger = \"5s\"\n\
         [[alerts.webhooks]]\nname = \"ops\"\nurl = \"http://{hook}/take\"\nkinds = [\"cluster\"]\nseverity = \"critical\"\n"
    );
    let plan = |name| Plan { tables: tables.clone(), ..Plan::new(name) };
    let mut mesh = Mesh::start(["alpha", "beta", "gamma"].map(plan));
    let a = mesh.state("alpha").to_owned();
    let spec = |name: &str, grace: &str| {
        format!(
            "name: {name}\ntenant: vision\nresources: {{gpus: 1}}\non_lost_contact: {{grace: {grace}}}\nrun: [sleep, \"600\"]\n"
        )
    };
    let moves = submit(&a, &spec("moves", "6s"));
    let stays = submit(&a, &spec("stays", "never"));
    for id in [&moves, &stays] {
        in_state(&a, id, &["running"]);
    }
    for id in [&moves, &stays] {
        let to = cli(&a, &["move", id, "gamma"]);
        assert!(to.code == 0 || to.out.contains("already") || to.err.contains("already"), "{to:?}");
        until("it is at gamma", || {
            let j = get(&a, &format!("/v1/jobs/{id}"))?;
            if j["cluster"] == "gamma" && j["state"] == "running" { Ok(()) } else { Err(j.to_string()) }
        });
    }
    for at in ["alpha", "beta", "gamma"] {
        let all = cli(mesh.state(at), &["--json", "incidents", "--past"]).ok().json();
        let each = ["open", "past"].map(|key| all[key].as_array().expect("a list").clone()).concat();
        assert!(
            each.iter().all(|i| i["kind"] != "contact"),
            "a mesh that forms has lost no contact: {all:#}"
        );
    }
    mesh.peer_mut("gamma").kill();
    // Its guard's attempts go on under their grace; nobody starts them elsewhere before.
    let first = until("an incident with its jobs", || {
        let found = incident(&mesh, "alpha", "cluster", "gamma")?;
        job(&found, &moves)?;
        job(&found, &stays)?;
        match found["jobs"]["unanswered"].as_array() {
            Some(silent) if silent.is_empty() => Ok(found),
            _ => Err(format!("who lives has answered: {found:#}")),
        }
    });
    assert_eq!(job(&first, &stays).expect("there")["doing"], "held", "{first:#}");
    let doing = job(&first, &moves).expect("there")["doing"].clone();
    assert!(doing == "waits-grace" || doing == "taken-over" || doing == "runs-again", "{first:#}");
    let told = taken.recv_timeout(Duration::from_secs(60)).expect("a webhook");
    assert_eq!(
        (&told["status"], &told["incident"]["subject"]),
        (&"open".into(), &"gamma".into()),
        "{told:#}"
    );
    assert_eq!((&told["incident"]["id"], &told["version"]), (&first["id"], &1.into()));
    job(&told["incident"], &moves).expect("its jobs go along");
    job(&told["incident"], &stays).expect("its jobs go along");
    until("what is done for it is followed", || {
        let found = incident(&mesh, "beta", "cluster", "gamma")?;
        let job = job(&found, &moves)?;
        if job["doing"] == "runs-again" && job["cluster"] != "gamma" { Ok(()) } else { Err(job.to_string()) }
    });
    // Both peers that are left know the incident by one id, and that it was told: so nobody tells it again.
    for at in ["alpha", "beta"] {
        until("it knows what was told", || {
            let found = incident(&mesh, at, "cluster", "gamma")?;
            let one = found["id"] == first["id"] && found["severity"] == "critical";
            if one && found["notices"][0]["status"] == "open" { Ok(()) } else { Err(found.to_string()) }
        });
        let out = cli(mesh.state(at), &["incidents"]).ok().out;
        assert!(
            out.contains("CRITICAL cluster") && out.contains("moves") && out.contains("ops was told open"),
            "{out}"
        );
    }
    let events = cli(&a, &["--json", "events", "--past", "--kind", "incident."]).ok().json();
    let kinds: BTreeSet<&str> =
        events["events"].as_array().into_iter().flatten().filter_map(|e| e["kind"].as_str()).collect();
    assert!(kinds.contains("incident.opened") && kinds.contains("incident.told"), "{events:#}");
    // Silences are the mesh's, and there after a restart.
    let id = first["id"].as_str().expect("an id").to_owned();
    cli(&a, &["silence", "link", "--for", "2h"]).ok();
    until("the other peer knows of it", || {
        let list = get(mesh.state("beta"), "/v1/silences")?;
        if list["silences"][0]["what"] == "link" { Ok(()) } else { Err(list.to_string()) }
    });
    mesh.peer_mut("beta").terminate();
    mesh.peer_mut("beta").restart();
    until("it still knows", || {
        let list = get(mesh.state("beta"), "/v1/silences")?;
        if list["silences"][0]["what"] == "link" { Ok(()) } else { Err(list.to_string()) }
    });
    assert_eq!(cli(&a, &["silence", "moon", "--for", "2h"]).code, 3);
    assert_eq!(cli(&a, &["silence", "link"]).code, 2);
    mesh.peer_mut("gamma").restart();
    // The restart of beta may have been an incident of its own: it is not this one.
    let over = loop {
        let told = taken.recv_timeout(Duration::from_secs(90)).expect("a webhook");
        if told["incident"]["subject"] == "gamma" {
            break told;
        }
    };
    assert_eq!(
        (&over["status"], &over["incident"]["id"]),
        (&"recovered".into(), &id.as_str().into()),
        "{over:#}"
    );
    assert_ne!(over["key"], told["key"]);
    for at in ["alpha", "beta"] {
        until("it knows that the end was told", || {
            let list = get(mesh.state(at), "/v1/incidents")?;
            let open = list["open"].as_array().is_none_or(|l| l.iter().any(|i| i["id"] == id.as_str()));
            let told = get(mesh.state("alpha"), &format!("/v1/incidents/{id}"))?;
            if !open && told["notices"][0]["status"] == "recovered" { Ok(()) } else { Err(list.to_string()) }
        });
    }
    let more: Vec<Value> = taken.try_iter().filter(|t| t["incident"]["subject"] == "gamma").collect();
    assert!(more.is_empty(), "told once each: {more:#?}");
}

#[test]
fn a_support_bundle_has_no_secrets() {
    let tables = "[alerts]\n[[alerts.webhooks]]\nname = \"ops\"\nurl = \"https://hooks.invalid/PLANTED-path?key=PLANTED-query\"\n\
                  headers = {X-Key = \"PLANTED-header\"}\n[[alerts.commands]]\nname = \"page\"\nrun = [\"/bin/true\", \"PLANTED-argument\"]\n";
    let mesh = Mesh::start([Plan { tables: tables.into(), ..Plan::new("alpha") }]);
    let a = mesh.state("alpha");
    let id = submit(
        a,
        "name: secretive\nresources: {gpus: 1}\nenv: {API_KEY: PLANTED-env}\ncheckpoint: \"s3://PLANTED-user:PLANTED-password@store/x\"\nrun: [sh, -c, \"echo token=PLANTED-printed; : PLANTED-command; sleep 1\"]\n",
    );
    succeeded(a, &id);
    let broken =
        submit(a, "name: broken\nresources: {gpus: 1}\nrun: [/nowhere/x, --password=PLANTED-flag]\n");
    ended(a, &broken);
    // An address that opens what it names: its record keeps it, since the next attempt needs it; events and spans do not.
    let signed = submit(a, "name: signed\nresources: {gpus: 1}\nrun: [sleep, \"600\"]\n");
    in_state(a, &signed, &["running"]);
    let uri =
        "https://PLANTED-user:PLANTED-word@store/c?sig=PLANTED-sas&X-Amz-Signature=PLANTED-aws&versionId=v7";
    let body = serde_json::json!({ "epoch": 1, "uri": uri }).to_string();
    let path = format!("/v1/jobs/{signed}/checkpoint");
    ask(a, axum::http::Method::POST, &path, Some(body.as_bytes()), &[]).expect("published");
    assert_eq!(get(a, &format!("/v1/jobs/{signed}")).expect("a job")["checkpoint"]["uri"], uri);
    let past = until("the event is written down", || {
        let past = cli(a, &["--json", "events", "--past", "--job", &signed]).ok().out;
        if past.contains("job.checkpoint") { Ok(past) } else { Err(past) }
    });
    assert!(past.contains("versionId=v7") && !past.contains("PLANTED"), "{past}");
    let trace = get(a, &format!("/v1/jobs/{signed}/trace")).expect("a trace").to_string();
    assert!(trace.contains("versionId=v7") && !trace.contains("PLANTED"), "{trace}");
    let out = mesh.folder.path().join("bundle.tar.zst");
    let said = cli(a, &["--json", "support-bundle", "--out", out.to_str().expect("a path")]).ok().json();
    assert_eq!(said["failed"], Value::Array(Vec::new()), "{said:#}");
    let packed = fs::read(&out).expect("a bundle");
    let plain = zstd::decode_all(&packed[..]).expect("zstd");
    // Something is in it,
    let text = String::from_utf8_lossy(&plain);
    for wanted in [
        "manifest.json",
        "config.toml",
        "secretive",
        "starling_members",
        "\"findings\"",
        id.as_str(),
        "hooks.invalid",
        "attempt.started",
        "job.checkpoint",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing");
    }
    // and none of these: what was planted, the token, the keys.
    let token = fs::read_to_string(a.join("api.token")).unwrap_or_default();
    let mut secrets = vec!["PLANTED".to_owned()];
    secrets.extend(Some(token.trim().to_owned()).filter(|t| !t.is_empty()));
    for file in fs::read_dir(a.join("identity")).expect("keys").flatten() {
        if file.path().extension().is_some_and(|e| e == "key") {
            let bytes = fs::read(file.path()).expect("a key");
            for text in [data_encoding::BASE64.encode(&bytes), data_encoding::HEXLOWER.encode(&bytes)] {
                secrets.push(text);
            }
            assert!(!plain.windows(bytes.len()).any(|w| w == bytes), "{}", file.path().display());
        }
    }
    assert!(secrets.len() >= 3, "keys were looked for");
    for secret in secrets {
        for bytes in [&packed, &plain] {
            assert!(
                !bytes.windows(secret.len()).any(|w| w == secret.as_bytes()),
                "{secret} is in the bundle"
            );
        }
    }
    let again = cli(a, &["support-bundle", "--out", out.to_str().expect("a path")]);
    assert_eq!(again.code, 2, "nothing is overwritten: {again:?}");
}
