//! The store against crashes, full disks, damage, and other processes.
// tidy: long because each way to lose a disk has a test, and they share how one is killed and cut

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::core::Table;

const CHILD_DIR: &str = "STARLING_TEST_STORE_DIR";
const CHILD_BYTES: &str = "STARLING_TEST_STORE_BYTES";

fn put(key: &[u8], value: &[u8]) -> Write {
    Write { table: Table::Acceptors, key: key.to_vec(), value: Some(value.to_vec()) }
}

fn rows(image: &DiskImage, table: Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    image.tables.get(&table).cloned().unwrap_or_default()
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let dir = tempfile::tempdir().expect("temp folder");
    let (store, image) = Store::open(dir.path()).expect("opens");
    assert_eq!(image, DiskImage::default());
    let id = store.id();
    assert_eq!(store.boot(), 1);
    store.commit_blocking(vec![put(b"a", b"1"), put(b"b", b"2")]).expect("commits");
    let gone = Write { table: Table::Acceptors, key: b"a".to_vec(), value: None };
    let meta = Write { table: Table::Meta, key: b"m".to_vec(), value: Some(vec![]) };
    store.commit_blocking(vec![gone, meta, put(b"c", b"0"), put(b"c", b"3")]).expect("commits");
    assert!(store.disk_free().expect("statvfs").0 > 0);
    assert_eq!(store.metrics().commits.get(), 2);
    drop(store);

    let (store, image) = Store::open(dir.path()).expect("opens again");
    assert_eq!((store.id(), store.boot()), (id, 2));
    let expected = [(b"b".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"3".to_vec())];
    assert_eq!(rows(&image, Table::Acceptors), BTreeMap::from(expected));
    assert_eq!(rows(&image, Table::Meta).len(), 1);
}

#[test]
fn batches_share_commits_and_are_answered_in_order() {
    let dir = tempfile::tempdir().expect("temp folder");
    let (store, _) = Store::open(dir.path()).expect("opens");
    let order = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    runtime.block_on(async {
        for n in 0..500_u32 {
            let order = order.clone();
            let done = move |result: Result<(), StoreError>| {
                result.expect("commits");
                order.lock().expect("not poisoned").push(n);
            };
            store.submit(Batch::new(vec![put(&n.to_be_bytes(), b"x")], done)).await;
        }
        store.commit(vec![]).await.expect("the last");
    });
    assert_eq!(*order.lock().expect("not poisoned"), (0..500).collect::<Vec<_>>());
    let commits = store.metrics().commits.get();
    assert!(commits < 400, "{commits} commits for 501 batches: nothing was grouped");
    let mut registry = prometheus_client::registry::Registry::default();
    store.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
    assert!(text.contains(&format!("starling_store_commits_total {commits}")), "{text}");
}

/// A token that was over at a peer's start was removed so, and ended every start: found by chaos with set clocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_may_be_waited_for_on_an_async_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::open(folder.path()).expect("opens");
    store.commit_blocking(vec![put(b"a", b"1")]).expect("commits");
}

#[test]
fn a_second_opener_is_refused_and_named() {
    let dir = tempfile::tempdir().expect("temp folder");
    let (store, _) = Store::open(dir.path()).expect("opens");
    let error = Store::open(dir.path()).map(|_| ()).expect_err("locked");
    assert!(matches!(error, StoreError::Locked { .. }));
    let text = error.to_string();
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    drop(store);
    Store::open(dir.path()).expect("free again");
}

#[test]
fn a_newer_format_is_refused_untouched() {
    let dir = tempfile::tempdir().expect("temp folder");
    drop(Store::open(dir.path()).expect("opens"));
    fs::write(dir.path().join("format"), "3\n").expect("writes");
    let before = fs::read(dir.path().join("store.redb")).expect("reads");
    for _ in 0..2 {
        let error = Store::open(dir.path()).map(|_| ()).expect_err("newer");
        assert!(matches!(error, StoreError::NewerVersion { found: 3, known: 2, .. }), "{error}");
    }
    assert_eq!(fs::read(dir.path().join("store.redb")).expect("reads"), before);
    fs::write(dir.path().join("format"), "hello").expect("writes");
    assert!(matches!(Store::open(dir.path()).map(|_| ()), Err(StoreError::NotAStore(_))));
    fs::write(dir.path().join("format"), "1\n").expect("writes");
    let (store, _) = Store::open(dir.path()).expect("the old one still opens");
    assert_eq!(store.boot(), 2, "refused opens are no boots");
}

#[test]
fn garbage_is_an_error_and_not_a_new_store() {
    let dir = tempfile::tempdir().expect("temp folder");
    fs::write(dir.path().join("store.redb"), vec![0xa5; 9_000]).expect("writes");
    let error = Store::open(dir.path()).map(|_| ()).expect_err("garbage");
    assert!(matches!(error, StoreError::Corrupt(_) | StoreError::Io { .. }), "{error}");
    assert_eq!(fs::read(dir.path().join("store.redb")).expect("reads"), vec![0xa5; 9_000]);
}

/// Not a test of its own: the process that the tests below start, and kill.
#[test]
#[ignore = "a helper process of other tests"]
fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let padding = std::env::var(CHILD_BYTES).ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let (store, image) = Store::open(Path::new(&dir)).expect("opens");
    let first = rows(&image, Table::Acceptors).keys().map(|k| number(k) + 1).max().unwrap_or(0);
    println!("boot {}", store.boot());
    std::thread::scope(|scope| {
        for lane in 0..4_u32 {
            let store = &store;
            scope.spawn(move || {
                for round in 0.. {
                    let n = first + round * 4 + lane;
                    // A batch touches two tables: torn, it would leave one without the other.
                    let twin = Write {
                        table: Table::Attempts,
                        key: n.to_be_bytes().to_vec(),
                        value: Some(vec![7; padding]),
                    };
                    match store.commit_blocking(vec![put(&n.to_be_bytes(), &n.to_be_bytes()), twin]) {
                        Ok(()) => println!("ok {n}"),
                        Err(error) => {
                            println!("error {n} {error:?}");
                            let again = store.commit_blocking(vec![put(b"late", b"")]);
                            println!("then {again:?}");
                            return;
                        }
                    }
                }
            });
        }
    });
}

fn number(key: &[u8]) -> u32 {
    u32::from_be_bytes(key.try_into().expect("keys of the child have 4 bytes"))
}

fn child(dir: &Path, wrapper: Option<&str>, padding: usize) -> Child {
    let exe = std::env::current_exe().expect("own path");
    let mut command = match wrapper {
        Some(script) => {
            let mut sh = Command::new("sh");
            sh.arg("-c").arg(format!("{script}; exec \"$@\"")).arg("sh").arg(exe);
            sh
        }
        None => Command::new(exe),
    };
    command
        .args([
            "--exact",
            "runtime::store::tests::child_process",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD_DIR, dir)
        .env(CHILD_BYTES, padding.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test binary starts")
}

fn check_twins(image: &DiskImage) {
    let twins: BTreeSet<_> = rows(image, Table::Attempts).into_keys().collect();
    let keys: BTreeSet<_> = rows(image, Table::Acceptors).into_keys().collect();
    assert_eq!(keys, twins, "a batch was applied by half");
    for (key, value) in rows(image, Table::Acceptors) {
        assert_eq!(key, value);
    }
}

#[test]
fn kill_9_loses_nothing_that_was_answered() {
    let dir = tempfile::tempdir().expect("temp folder");
    let mut acknowledged = BTreeSet::new();
    let mut boot = 0;
    for round in 0..12_u64 {
        let mut child = child(dir.path(), None, 100);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut seen = 0;
        // Killed after a varied number of answers, at a varied moment between two of them.
        let enough = 1 + round * 37 % 300;
        while seen < enough {
            let line = lines.next().expect("goes on until killed").expect("reads");
            if let Some(n) = line.strip_prefix("ok ") {
                acknowledged.insert(n.parse::<u32>().expect("a number"));
                seen += 1;
            }
        }
        std::thread::sleep(Duration::from_micros(round * 331 % 2_000));
        child.kill().expect("SIGKILL");
        child.wait().expect("reaped");
        for line in lines.map_while(Result::ok) {
            if let Some(n) = line.strip_prefix("ok ").and_then(|n| n.parse().ok()) {
                acknowledged.insert(n);
            }
        }
        let (store, image) = Store::open(dir.path()).expect("opens after kill -9");
        assert!(store.boot() > boot + 1, "the child's boot counts");
        boot = store.boot();
        let keys: BTreeSet<u32> = rows(&image, Table::Acceptors).keys().map(|k| number(k)).collect();
        let lost: Vec<_> = acknowledged.difference(&keys).collect();
        assert!(lost.is_empty(), "round {round}: answered and lost: {lost:?}");
        check_twins(&image);
    }
    assert!(acknowledged.len() > 500);
}

#[test]
fn a_full_disk_is_a_typed_error_and_keeps_what_was_answered() {
    let dir = tempfile::tempdir().expect("temp folder");
    drop(Store::open(dir.path()).expect("opens"));
    // A file size limit stands for a full disk; without its signal it is an error like ENOSPC. In 512 B blocks.
    let child = child(dir.path(), Some("trap '' 25; ulimit -f 6000"), 20_000);
    let output = child.wait_with_output().expect("ends by itself");
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut acknowledged, mut full, mut poisoned) = (BTreeSet::new(), 0, 0);
    for line in text.lines() {
        if let Some(n) = line.strip_prefix("ok ") {
            acknowledged.insert(n.parse::<u32>().expect("a number"));
        }
        full += usize::from(line.starts_with("error") && line.contains("NoSpace"));
        poisoned += usize::from(line.starts_with("then Err(Poisoned"));
    }
    assert!(full > 0, "no typed error: {}", &text[text.len().saturating_sub(2_000)..]);
    assert_eq!(poisoned, 4, "after a failed commit every batch is refused");
    assert!(!acknowledged.is_empty());
    let (store, image) = Store::open(dir.path()).expect("opens once there is space");
    let keys: BTreeSet<u32> = rows(&image, Table::Acceptors).keys().map(|k| number(k)).collect();
    assert!(acknowledged.is_subset(&keys));
    check_twins(&image);
    store.commit_blocking(vec![put(b"after", b"")]).expect("and takes writes again");
}

/// Opens what this process has just closed. A child that another test is starting has a copy of the lock until it
/// runs its program, and so for a moment the folder is still locked.
fn unlocked(dir: &Path) -> Result<(Store, DiskImage), StoreError> {
    loop {
        match Store::open(dir) {
            Err(StoreError::Locked { .. }) => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

fn open(dir: &Path) -> (Store, DiskImage) {
    unlocked(dir).expect("opens")
}

/// A store that was killed: its log holds what its database does not.
fn killed(dir: &Path, commits: u32) {
    let (store, _) = open(dir);
    for n in 0..commits {
        store.commit_blocking(vec![put(&n.to_be_bytes(), &[7; 100])]).expect("commits");
    }
    // The files as they are now, put back after the orderly end.
    let files = ["store.redb", "store.0.log", "store.1.log", "format"].map(|f| (f, fs::read(dir.join(f))));
    drop(store);
    for (name, bytes) in files {
        match bytes {
            Ok(bytes) => fs::write(dir.join(name), bytes).expect("writes"),
            Err(_) => drop(fs::remove_file(dir.join(name))),
        }
    }
}

#[test]
fn a_log_that_is_cut_anywhere_holds_the_commits_before_the_cut() {
    let dir = tempfile::tempdir().expect("temp folder");
    killed(dir.path(), 6);
    let whole = fs::read(dir.path().join("store.0.log")).expect("a log");
    let database = fs::read(dir.path().join("store.redb")).expect("a database");
    let frame = 16 + 1 + 4 + 4 + 4 + 100;
    let mut held_before = 0;
    for cut in (0..20 + 6 * frame + 40).step_by(13) {
        for zeroed in [false, true] {
            let mut torn = whole.clone();
            if zeroed {
                torn[cut..].fill(0);
            } else {
                torn.truncate(cut);
            }
            fs::write(dir.path().join("store.0.log"), torn).expect("writes");
            fs::write(dir.path().join("store.redb"), &database).expect("writes");
            fs::write(dir.path().join("format"), "2\n").expect("writes");
            if cut < 20 {
                // The header was on disk before anything was promised.
                let error = unlocked(dir.path()).map(|_| ()).expect_err("no log");
                assert!(matches!(error, StoreError::Corrupt(_)), "cut at {cut}: {error}");
                continue;
            }
            let (store, image) = open(dir.path());
            let held = rows(&image, Table::Acceptors).len();
            assert_eq!(held, cut.saturating_sub(20).div_euclid(frame).min(6), "cut at {cut}");
            assert!(held >= held_before);
            held_before = held;
            store.commit_blocking(vec![put(b"more", b"1")]).expect("goes on");
            drop(store);
            let (_, image) = open(dir.path());
            assert_eq!(rows(&image, Table::Acceptors).len(), held + 1, "cut at {cut}");
        }
    }
    assert_eq!(held_before, 6);
}

#[test]
fn a_changed_byte_inside_the_log_is_damage_and_not_an_end() {
    let dir = tempfile::tempdir().expect("temp folder");
    killed(dir.path(), 6);
    let whole = fs::read(dir.path().join("store.0.log")).expect("a log");
    let mut damaged = whole.clone();
    damaged[20 + 129 * 2 + 60] ^= 1;
    fs::write(dir.path().join("store.0.log"), damaged).expect("writes");
    let error = unlocked(dir.path()).map(|_| ()).expect_err("damaged");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    fs::write(dir.path().join("store.0.log"), whole).expect("writes");
    let (_, image) = open(dir.path());
    assert_eq!(rows(&image, Table::Acceptors).len(), 6);
}

#[test]
fn files_that_take_turns_lose_nothing_and_an_orderly_end_needs_no_log() {
    let dir = tempfile::tempdir().expect("temp folder");
    let (store, _) = open(dir.path());
    let format = || fs::read_to_string(dir.path().join("format")).expect("reads");
    assert_eq!(format(), "2\n", "a binary that knows no log must not read it now");
    let megabyte = vec![9; 1 << 20];
    for n in 0..40_u32 {
        store.commit_blocking(vec![put(&(n % 25).to_be_bytes(), &megabyte)]).expect("commits");
        store.commit_blocking(vec![put(b"last", &n.to_be_bytes())]).expect("commits");
    }
    assert!(dir.path().join("store.1.log").exists(), "one file was full");
    drop(store);
    assert_eq!(format(), "1\n");
    for which in ["store.0.log", "store.1.log"] {
        fs::remove_file(dir.path().join(which)).expect("a log");
    }
    let (_, image) = open(dir.path());
    let held = rows(&image, Table::Acceptors);
    assert_eq!((held.len(), held.get(b"last".as_slice())), (26, Some(&39_u32.to_be_bytes().to_vec())));
}

/// A flipped byte in its header, or a log that was deleted: the store began as if nothing had ever been promised.
#[test]
fn a_log_that_is_lost_or_has_no_header_is_damage_and_not_an_empty_store() {
    let dir = tempfile::tempdir().expect("temp folder");
    killed(dir.path(), 6);
    let (log, database) = (dir.path().join("store.0.log"), dir.path().join("store.redb"));
    let (whole, rows_before) = (fs::read(&log).expect("a log"), fs::read(&database).expect("a database"));
    let refused = |what: &str| {
        let error = unlocked(dir.path()).map(|_| ()).expect_err(what);
        assert!(matches!(error, StoreError::Corrupt(_)), "{what}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("store.0.log") && text.contains("member remove") && text.contains("no older copy"),
            "{text}"
        );
        fs::write(&database, &rows_before).expect("writes");
    };
    for at in [0, 2, 8, 12, 15, 16, 18, 19] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        fs::write(&log, &damaged).expect("writes");
        refused(&format!("byte {at}"));
        // The same in a folder whose format number was lost with it: its commits are there and not in the database.
        fs::write(dir.path().join("format"), "1\n").expect("writes");
        refused(&format!("byte {at}, plain"));
        fs::write(dir.path().join("format"), "2\n").expect("writes");
        // Its first block with all that it says.
        damaged[..150].fill(0);
        fs::write(&log, &damaged).expect("writes");
        refused(&format!("byte {at}, first commit"));
    }
    fs::remove_file(&log).expect("a log");
    refused("deleted");
    fs::write(&log, b"").expect("writes");
    refused("emptied");
    fs::remove_file(&database).expect("a database");
    fs::write(&log, &whole).expect("writes");
    let error = unlocked(dir.path()).map(|_| ()).expect_err("no database");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    fs::write(&database, &rows_before).expect("writes");
    let (_, image) = open(dir.path());
    assert_eq!(rows(&image, Table::Acceptors).len(), 6);
}

/// The files of a store that runs, as a power cut would leave them.
fn snapshot(dir: &Path, to: &Path) {
    for name in ["store.redb", "store.0.log", "store.1.log", "format"] {
        if let Ok(bytes) = fs::read(dir.join(name)) {
            fs::write(to.join(name), bytes).expect("writes");
        }
    }
}

#[test]
fn the_file_that_goes_on_is_missed_and_the_one_that_does_not_is_not() {
    let (dir, copy) = (tempfile::tempdir().expect("temp folder"), tempfile::tempdir().expect("temp folder"));
    let (store, _) = open(dir.path());
    // As if no checkpoint had come to its end.
    let database = fs::read(dir.path().join("store.redb")).expect("a database");
    let half = vec![9; 2 << 20];
    for n in 0..2_u32 {
        store.commit_blocking(vec![put(&n.to_be_bytes(), &half)]).expect("commits");
    }
    // The first file is full: this is in the second.
    store.commit_blocking(vec![put(b"last", b"1")]).expect("commits");
    snapshot(dir.path(), copy.path());
    fs::write(copy.path().join("store.redb"), database).expect("writes");
    drop(store);
    let second = copy.path().join("store.1.log");
    let whole = fs::read(&second).expect("it goes on there");
    let names = ["store.redb", "store.0.log", "store.1.log", "format"];
    let before = names.map(|name| fs::read(copy.path().join(name)).expect("a file"));
    let again = || {
        names.iter().zip(&before).for_each(|(name, b)| fs::write(copy.path().join(name), b).expect("writes"))
    };
    for damage in 0..3 {
        again();
        match damage {
            0 => fs::remove_file(&second).expect("a log"),
            1 => fs::write(&second, vec![0; whole.len()]).expect("writes"),
            _ => fs::write(copy.path().join("store.0.log"), b"").expect("writes"),
        }
        let error = unlocked(copy.path()).map(|_| ()).expect_err("lost");
        assert!(matches!(error, StoreError::Corrupt(_)), "{damage}: {error}");
    }
    again();
    let (store, image) = open(copy.path());
    assert_eq!(rows(&image, Table::Acceptors).len(), 3);
    store.commit_blocking(vec![put(b"more", b"1")]).expect("commits");
    let mark = fs::read(copy.path().join("store.1.log")).expect("kept for its space");
    assert_eq!(mark[..20], [0; 20], "what an earlier start left is not taken for the present log");
    let third = tempfile::tempdir().expect("temp folder");
    snapshot(copy.path(), third.path());
    drop(store);
    // The crash window of taking the other file into use: its header is torn, nothing says that it goes on.
    fs::write(third.path().join("store.1.log"), [7; 11]).expect("writes");
    let (_, image) = open(third.path());
    assert_eq!(rows(&image, Table::Acceptors).len(), 4);
}

/// A start that broke off anywhere misses nothing that was never there.
#[test]
fn a_start_that_broke_off_is_gone_on_with() {
    let dir = tempfile::tempdir().expect("temp folder");
    killed(dir.path(), 3);
    drop(open(dir.path()));
    // Format 1 is written before the log is begun anew; what stands there then may be anything.
    assert_eq!(fs::read_to_string(dir.path().join("format")).expect("reads"), "1\n");
    for torn in [&b""[..], &[1; 7], &[0; 40]] {
        fs::write(dir.path().join("store.0.log"), torn).expect("writes");
        let (_, image) = open(dir.path());
        assert_eq!(rows(&image, Table::Acceptors).len(), 3);
    }
}

#[test]
fn damaged_pages_of_the_database_are_an_error_and_no_panic() {
    let dir = tempfile::tempdir().expect("temp folder");
    killed(dir.path(), 400);
    drop(open(dir.path()));
    let names = ["store.redb", "format"];
    let whole = names.map(|name| fs::read(dir.path().join(name)).expect("a file"));
    let mut refused = 0;
    for at in (0..whole[0].len()).step_by(4_093).take(80) {
        for (name, bytes) in names.iter().zip(&whole) {
            fs::write(dir.path().join(name), bytes).expect("writes");
        }
        let mut damaged = whole[0].clone();
        let end = (at + 64).min(damaged.len());
        damaged[at..end].iter_mut().for_each(|b| *b ^= 0xff);
        fs::write(dir.path().join("store.redb"), damaged).expect("writes");
        // A page that nothing uses may change.
        if let Err(error) = unlocked(dir.path()).map(|_| ()) {
            refused += 1;
            let typed = matches!(
                error,
                StoreError::Corrupt(_) | StoreError::Io { .. } | StoreError::NewerVersion { .. }
            );
            assert!(typed, "at {at}: {error}");
        }
    }
    assert!(refused > 3, "{refused}");
}
