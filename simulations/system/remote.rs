//! The command line against a peer elsewhere: over TCP and TLS, by flag and by environment, and what it says where that does
//! not work. Elsewhere is this machine: with a state folder that holds nothing.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use super::harness::*;
use super::mesh::{Mesh, PeerProcess, Plan};

/// A peer whose API listens on TCP, over TLS where that is everywhere and not on loopback alone.
fn peer(api: &'static str) -> Mesh {
    Mesh::start([Plan { api, ..Plan::new("alpha") }])
}

fn port(peer: &PeerProcess) -> u16 {
    let at = peer.get("/v1/peer")["api"].as_str().expect("an address").to_owned();
    at.rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port")
}

fn token_of(peer: &PeerProcess) -> String {
    fs::read_to_string(peer.state.join("api.token")).expect("a token").trim().to_owned()
}

/// Runs it as on a machine that has no peer.
fn elsewhere(folder: &Path, env: &[(&str, &str)], args: &[&str]) -> Out {
    let mut command = command();
    command.arg("--state").arg(folder.join("nothing")).args(args).envs(env.iter().copied());
    let done = command.output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Out { code: done.status.code().unwrap_or(-1), out: text(&done.stdout), err: text(&done.stderr) }
}

/// An exit code, and a text that says what is wrong and what to do.
fn says(out: &Out, code: i32, parts: &[&str]) {
    assert_eq!(out.code, code, "{out:?}");
    assert!(out.err.contains("hint: "), "{out:?}");
    for part in parts {
        assert!(out.err.contains(part), "{part}: {out:?}");
    }
}

#[test]
fn a_peer_is_asked_over_tcp_with_its_token() {
    let mesh = peer("127.0.0.1:0");
    let (alpha, folder) = (mesh.peer("alpha"), mesh.folder.path());
    let (at, token) = (format!("127.0.0.1:{}", port(alpha)), token_of(alpha));
    let with = elsewhere(folder, &[], &["--peer", &at, "--token", &token, "--json", "peer"]);
    assert_eq!(with.ok().json()["name"], "alpha");
    let set = [("STARLING_PEER", at.as_str()), ("STARLING_TOKEN", token.as_str())];
    let file = folder.join("job.yaml");
    fs::write(&file, "name: far\nrun: 'echo from afar'\n").expect("written");
    let path = file.to_str().expect("a path");
    let done = elsewhere(folder, &set, &["--json", "submit", "--wait", path]).ok();
    let id = done.json()["jobs"][0]["id"].as_str().map(str::to_owned);
    let id = id.unwrap_or_else(|| panic!("no id: {done:?}"));
    assert_eq!(elsewhere(folder, &set, &["logs", &id]).ok().out, "from afar\n");
    // The flag wins over the environment.
    let wrong = [("STARLING_PEER", "127.0.0.1:1"), set[1]];
    elsewhere(folder, &wrong, &["--peer", &at, "clusters"]).ok();
    // No token, and a wrong one.
    says(&elsewhere(folder, &set[..1], &["clusters"]), 5, &["token", "api.token"]);
    says(&elsewhere(folder, &set[..1], &["--token", "guess", "clusters"]), 5, &["token", "api.token"]);
    let error = elsewhere(folder, &set[..1], &["--json", "clusters"]).json();
    assert_eq!(error["error"]["code"], "unauthorized", "{error}");
}

#[test]
fn a_peer_is_asked_over_tls_with_a_token_or_a_members_certificate() {
    let mesh = peer("0.0.0.0:0");
    let (alpha, folder) = (mesh.peer("alpha"), mesh.folder.path());
    let (at, token) = (format!("https://127.0.0.1:{}", port(alpha)), token_of(alpha));
    let ca = alpha.state.join("identity/ca.pem");
    let ca = ca.to_str().expect("a path");
    let base = ["--peer", at.as_str()];
    let asked = |env: &[(&str, &str)], more: &[&str]| elsewhere(folder, env, &[&base[..], more].concat());
    let good = asked(&[], &["--ca", ca, "--token", &token, "--json", "peer"]);
    assert_eq!(good.ok().json()["name"], "alpha");
    let set = [("STARLING_CA", ca), ("STARLING_TOKEN", token.as_str())];
    let job = asked(&set, &["--json", "run", "--wait", "--", "true"]).ok().json();
    assert_eq!(job["jobs"][0]["state"], "succeeded", "{job}");
    // Its page is where it was reached, not at the address of everywhere.
    let page = asked(&set, &["page"]).ok().out;
    assert!(page.starts_with(&format!("{at}/#token=")), "{page}");
    let here = cli(&alpha.state, &["page"]).ok().out;
    assert!(here.starts_with("https://localhost:"), "{here}");
    assert!(alpha.words().contains("https://localhost:") && !alpha.words().contains("https://0.0.0.0"));

    // On a member's own machine its certificate is enough: it is shown by itself.
    let member = cli(&alpha.state, &["--peer", &at, "--json", "peer"]);
    assert_eq!(member.ok().json()["name"], "alpha");
    // This machine's token opens this machine's page and is no other's business.
    let page = cli(&alpha.state, &["--peer", &at, "page"]).ok().out;
    assert!(page.starts_with(&format!("{at}/\n")) && !page.contains("#token="), "{page}");
    let who = cli(&alpha.state, &["--peer", &at, "drain"]).ok();
    assert_eq!(who.code, 0);
    let audit = cli(&alpha.state, &["--json", "audit"]).ok().json();
    assert!(audit["entries"].to_string().contains("member alpha"), "{audit:#}");
    cli(&alpha.state, &["--peer", &at, "undrain"]).ok();

    // No certificate of the mesh, that of another one, and no token.
    says(&asked(&set[1..], &["clusters"]), 2, &["identity/ca.pem", "--ca"]);
    let other = peer("off");
    let foreign = other.peer("alpha").state.join("identity/ca.pem");
    let foreign = foreign.to_str().expect("a path");
    says(
        &asked(&set[1..], &["--ca", foreign, "clusters"]),
        4,
        &["does not prove to be a peer", "identity/ca.pem"],
    );
    // A member of another mesh believes nobody here, and does not even show its certificate.
    let stranger = cli(&other.peer("alpha").state, &["--peer", &at, "clusters"]);
    says(&stranger, 4, &["does not prove to be a peer"]);
    says(&asked(&set[..1], &["clusters"]), 5, &["token"]);
    says(&asked(&set[1..], &["--ca", "/no/such.pem", "clusters"]), 2, &["/no/such.pem"]);
    // Plain HTTP where TLS is spoken, and the reverse.
    let plain = format!("http://127.0.0.1:{}", port(alpha));
    let plain = elsewhere(folder, &set, &["--peer", &plain, "clusters"]);
    assert!(plain.code != 0 && plain.err.contains("hint: "), "{plain:?}");
    let open = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = open.local_addr().expect("an address").port();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = open.accept().expect("a caller");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("said");
    });
    let reverse = elsewhere(folder, &set, &["--peer", &format!("https://127.0.0.1:{silent}"), "clusters"]);
    says(&reverse, 4, &["--ca"]);
    answers.join().expect("it ends");
}

#[test]
fn a_peer_that_is_not_there_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let at = format!("127.0.0.1:{port}");
    let gone = elsewhere(folder.path(), &[], &["--peer", &at, "clusters"]);
    says(&gone, 4, &[&at, "--peer", "api.listen"]);
    let nowhere = elsewhere(folder.path(), &[], &["clusters"]);
    says(&nowhere, 4, &["api.sock", "starling up"]);
    let set = [("STARLING_PEER", at.as_str())];
    let error = elsewhere(folder.path(), &set, &["--json", "clusters"]);
    assert_eq!((error.code, &error.json()["error"]["code"]), (4, &"unreachable".into()), "{error:?}");
    for wrong in ["ftp://h:1", "host", "http://192.0.2.1:80"] {
        says(&elsewhere(folder.path(), &[], &["--peer", wrong, "clusters"]), 2, &["--peer"]);
    }
}
