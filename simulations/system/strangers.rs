//! Tokens, names and certificates that are not good, and garbage on the wire.

use std::net::UdpSocket;
use std::path::Path;

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, PeerProcess, Plan};

/// `starling up` that must end by itself.
fn fails(folder: &Path, name: &str, join: &str) -> Out {
    let out = cli(&folder.join(name), &["up", "--listen", "127.0.0.1:0", "--name", name, "--join", join]);
    assert!(out.code != 0, "{out:?}");
    out
}

#[test]
fn a_token_is_good_once_for_a_while_and_for_a_free_name() {
    let mesh = Mesh::start([Plan::new("alpha"), Plan::new("beta")]);
    let (alpha, folder) = (mesh.peer("alpha"), mesh.folder.path());
    let member_count = || alpha.get("/v1/members")["members"].as_array().map(Vec::len);
    // The name of another: the list stays as it is, and so does that peer.
    let out = fails(&folder.join("other"), "beta", &alpha.token());
    assert!(out.err.contains("beta"), "{out:?}");
    assert_eq!(member_count(), Some(2));
    // Expired before it is used.
    let made = cli(&alpha.state, &["--json", "token", "create", "--ttl", "1s"]);
    let made = made.ok().json();
    let late = format!("{}@{}", made["token"].as_str().expect("a token"), alpha.listen);
    let begun = std::time::Instant::now();
    until("the token has expired", || match begun.elapsed() {
        age if age > std::time::Duration::from_millis(1_500) => Ok(()),
        age => Err(format!("{age:?} old")),
    });
    let out = fails(folder, "late", &late);
    assert!(out.err.contains("expired"), "{out:?}");
    // Good once.
    let token = alpha.token();
    let gamma = PeerProcess::start(folder, Plan::new("gamma"), Some(&token));
    let out = fails(folder, "delta", &token);
    assert!(out.err.contains("used"), "{out:?}");
    // Nonsense.
    fails(folder, "nonsense", &format!("stl1-nonsense@{}", alpha.listen));
    assert_eq!(member_count(), Some(3));
    assert!(!folder.join("delta/identity/peer.pem").exists());

    // A removed member is out, for good, and all others know.
    cli(&alpha.state, &["member", "remove", "gamma"]).ok();
    until("beta knows of the removal", || {
        let list = get(mesh.state("beta"), "/v1/members")?;
        let row = list["members"].as_array().and_then(|m| m.iter().find(|m| m["name"] == "gamma").cloned());
        if row.is_some_and(|r| r["removed"] == true) { Ok(()) } else { Err(list.to_string()) }
    });
    // It is told so itself, and does not have its network suspected.
    until("gamma knows why", || {
        let out = cli(&gamma.state, &["doctor"]);
        let told = out.out.contains("takes no link from this peer")
            && out.out.contains("was removed from this mesh");
        told.then_some(()).ok_or_else(|| format!("{out:?}"))
    });
    drop(gamma);
    succeeded(mesh.state("beta"), &submit(mesh.state("beta"), "run: [\"true\"]\n"));
}

#[test]
fn a_peer_of_another_mesh_at_a_members_address_gets_nothing() {
    // Three: of two, each would say that it is alone, and not that the other is lost.
    let mut home = Mesh::three();
    // beta's address is taken over by a peer of another mesh, of the same name even.
    let address = home.peer("beta").listen.clone();
    home.peer_mut("beta").kill();
    let mut plan = Plan::new("beta");
    plan.listen = address;
    let foreign = Mesh::start([plan]);
    until("beta is lost", || match home.peer("alpha").sees("beta")?.as_str() {
        "lost" => Ok(()),
        other => Err(other.to_owned()),
    });
    let list = foreign.peers[0].get("/v1/clusters");
    assert_eq!(list["clusters"].as_array().map(Vec::len), Some(1), "{list:#}");
    // A token of one mesh is nothing at the other.
    let token = home.peer("alpha").token();
    let (token, _) = token.split_once('@').expect("a token");
    let out = fails(home.folder.path(), "delta", &format!("{token}@{}", foreign.peers[0].listen));
    assert!(!out.err.is_empty() && !home.folder.path().join("delta/identity/peer.pem").exists(), "{out:?}");
    succeeded(&foreign.peers[0].state, &submit(&foreign.peers[0].state, "run: [\"true\"]\n"));
    let members = foreign.peers[0].get("/v1/members");
    assert_eq!(members["members"].as_array().map(Vec::len), Some(1), "{members:#}");
    // The true one comes back to its folder and all is well.
    drop(foreign);
    home.peer_mut("beta").restart();
    home.agree();
}

#[test]
fn garbage_on_the_quic_port_disturbs_nobody() {
    let mesh = Mesh::start([Plan::new("alpha"), Plan::new("beta")]);
    let target = mesh.peer("alpha").listen.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let shouter = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut rng = starling::base::Rng::new(3);
        let mut sent = 0_u64;
        // Random bytes, and some that begin like the first packet of a connection.
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let length = 1 + rng.below(1_400) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| rng.u64() as u8).collect();
            if rng.chance(0.5) && length > 5 {
                bytes[..5].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
            }
            sent += u64::from(socket.send_to(&bytes, &target).is_ok());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        sent
    });
    let ids: Vec<String> = (0..6)
        .map(|n| {
            let at = ["alpha", "beta"][n % 2];
            let spec = format!(
                "resources: {{gpus: 1}}\nplacement: {{clusters: [{}]}}\nrun: [\"true\"]\n",
                ["beta", "alpha"][n % 2]
            );
            submit(mesh.state(at), &spec)
        })
        .collect();
    for id in &ids {
        let job = succeeded(mesh.state("alpha"), id);
        assert_eq!((of_attempts(&job, "epoch"), &job["losses"]), (vec![json!(1)], &json!(0)), "{job:#}");
    }
    drop(stop);
    assert!(shouter.join().expect("it ends") > 100);
    mesh.agree();
    assert_eq!(mesh.peers[0].get("/v1/members")["members"].as_array().map(Vec::len), Some(2));
}
