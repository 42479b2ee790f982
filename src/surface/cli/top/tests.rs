//! Frames of `top` at many sizes, and what its keys do.

use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::state::View;
use super::*;
use crate::base::Span;
use crate::model::report::HealthReport;
use crate::surface::fake::{Fake, name};

fn shown(seen: &Seen, screen: &mut Screen, size: (u16, u16)) -> String {
    text_of(seen, screen, size, 61_000, false).expect("drawn")
}

fn press(seen: &Seen, screen: &mut Screen, keys: &str) {
    for c in keys.chars() {
        let code = match c {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '↓' => KeyCode::PageDown,
            c => KeyCode::Char(c),
        };
        screen.key(seen, code, KeyModifiers::NONE);
    }
}

/// Two peers of which one is lost, and so many jobs.
fn seen(jobs: usize) -> Seen {
    let fake = Fake::new("alpha");
    let view = crate::runtime::PeerHandle::view(&*fake);
    let mut clusters: Vec<ClusterDocument> =
        view.members.values().map(|m| ClusterDocument::new(m, Some(4_000))).collect();
    let mut lost = clusters[0].clone();
    lost.name = name("beta");
    lost.liveness = "lost".into();
    clusters.push(lost);
    let of = |n: usize| {
        let id = fake.put(Fake::spec(&format!("name: training-{n}\nrun: [\"true\"]\n")));
        let record = fake.state.lock().expect("state").records[&id].clone();
        JobDocument::new(&record, false)
    };
    let jobs = JobList { jobs: (0..jobs).map(of).collect(), ..JobList::default() };
    let link = |rtt_ms: f64, to: &str| LinkDocument {
        from: name("alpha"),
        to: name(to),
        rtt_ms,
        loss: 0.25,
        bandwidth_bps: Some(900_000_000),
        bandwidth_age_ms: None,
        direct: true,
        age_ms: 2_000,
    };
    let links = LinkList { links: vec![link(1.5, "beta"), link(70.0, "gamma")] };
    let clusters = ClusterList { clusters, isolated: false };
    let mut seen = Seen::new("alpha".into());
    seen.take(Ok(Look { clusters, jobs, links }), 60_000);
    seen
}

#[test]
fn a_small_terminal_shows_everything_that_matters() {
    let (seen, mut screen) = (seen(3), Screen::new(View::Clusters));
    let text = shown(&seen, &mut screen, (80, 24));
    for part in [
        "starling top at alpha",
        "1 of 2 peers alive",
        "3 of 8 GPUs free",
        "3 wait",
        "not seen: beta lost",
        "region-alpha",
        "##",
        "xxxx",
        "3/8",
        "q quit",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(text.lines().count(), 24);
    press(&seen, &mut screen, "2");
    let text = shown(&seen, &mut screen, (80, 24));
    assert!(
        text.contains("training-0") && text.contains("pending") && text.contains("waits for a"),
        "{text}"
    );
    press(&seen, &mut screen, "\t");
    let text = shown(&seen, &mut screen, (80, 24));
    assert!(text.contains("BANDWIDTH") && text.contains("900 Mb/s") && text.contains("25.00 %"), "{text}");
    press(&seen, &mut screen, "?");
    assert!(shown(&seen, &mut screen, (80, 24)).contains("any key goes back"));
    press(&seen, &mut screen, "xq");
    assert!(screen.done, "the first key only closed the help");
}

#[test]
fn a_large_terminal_is_used() {
    let (seen, mut screen) = (seen(100), Screen::new(View::Jobs));
    let text = shown(&seen, &mut screen, (200, 60));
    assert_eq!(text.matches("training-").count(), 55, "{text}");
    assert!(text.contains("waits for a cluster"), "{text}");
}

#[test]
fn no_size_breaks_it() {
    let seen = seen(30);
    for size in [(1, 1), (2, 2), (5, 1), (10, 3), (1, 40), (40, 8), (79, 23), (300, 2)] {
        for view in [View::Clusters, View::Jobs, View::Links] {
            let mut screen = Screen::new(view);
            for keys in ["", "j", "↓↓", "k", "G", "g", "?", "x", "s", "r", "/train", "\n", "\u{1b}"] {
                press(&seen, &mut screen, keys);
                assert_eq!(shown(&seen, &mut screen, size).lines().count(), usize::from(size.1));
            }
            let nothing = Seen::new("alpha".into());
            press(&nothing, &mut screen, "jkG↓");
            shown(&nothing, &mut screen, size);
        }
    }
}

#[test]
fn rows_are_found_sorted_and_stay_chosen() {
    let (seen, mut screen) = (seen(30), Screen::new(View::Jobs));
    let first = |screen: &Screen| screen.table(&seen, 61_000).rows[0].cells[1].text.clone();
    assert_eq!(first(&screen), "training-29", "the newest first");
    press(&seen, &mut screen, "r");
    assert_eq!(first(&screen), "training-0");
    press(&seen, &mut screen, "/training-17\n");
    let text = shown(&seen, &mut screen, (80, 24));
    assert!(
        text.contains("training-17") && !text.contains("training-16") && text.contains("1 of 30"),
        "{text}"
    );
    press(&seen, &mut screen, "\u{1b}");
    assert!(!screen.done, "esc shows all before it leaves");
    // The last one is chosen, and in sight, also when another look puts one before it.
    press(&seen, &mut screen, "G");
    let last = screen.table(&seen, 61_000).rows.last().expect("rows").key.clone();
    let text = shown(&seen, &mut screen, (80, 24));
    assert!(text.contains("training-29"), "{text}");
    let mut later = seen.clone();
    later.look.jobs.jobs.remove(3);
    let rows = screen.table(&later, 61_000).rows;
    assert_eq!(rows[screen.at(&rows)].key, last);
    press(&seen, &mut screen, "3s");
    assert_eq!(screen.table(&seen, 61_000).rows[0].cells[1].text, "gamma", "the slowest round trip");
}

#[test]
fn a_peer_that_went_away_is_said_and_the_figures_stay() {
    let (mut seen, mut screen) = (seen(1), Screen::new(View::Clusters));
    seen.take(Err("no peer answers\u{1b}[2J".into()), 70_000);
    let text = text_of(&seen, &mut screen, (100, 24), 75_000, false).expect("drawn");
    assert!(text.contains("figures of 15s ago, trying again: no peer answers"), "{text}");
    assert!(text.contains("3/8") && !text.contains('\u{1b}'), "{text}");
    let again = seen.look.clone();
    seen.take(Ok(again), 76_000);
    assert!(!text_of(&seen, &mut screen, (100, 24), 76_000, false).expect("drawn").contains("trying again"));
}

#[test]
fn one_frame_is_text_for_scripts() {
    let (seen, mut screen) = (seen(40), Screen::new(View::Jobs));
    let text = frame(&seen, &mut screen, 100).expect("drawn");
    assert_eq!(text.matches("training-").count(), 40, "every row:\n{text}");
    assert!(!text.contains("q quit") && text.contains("jobs 40 by newest"), "{text}");
}

/// What stands under a heading, in a row of a table.
fn under(head: &str, row: &str, heading: &str, width: usize) -> String {
    let end = head.find(heading).unwrap_or_else(|| panic!("{heading}: {head}")) + heading.len();
    let cells: Vec<char> = row.chars().collect();
    cells[end - width..end.min(cells.len())].iter().collect::<String>().trim().to_owned()
}

/// From a peer that answers over its socket to the cells of a terminal, twice.
#[tokio::test]
async fn eighty_by_twenty_four_shows_what_a_live_peer_says() {
    let fake = Fake::new("alpha");
    let health = |cpu_milli, gpu_milli| HealthReport { cpu_milli, gpu_milli, ..HealthReport::default() };
    for other in ["beta", "gamma"] {
        fake.knows(other, Some(crate::surface::router(Fake::new(other))));
    }
    {
        let mut state = fake.state.lock().expect("state");
        state.heard_ago = [("alpha", 1), ("beta", 95), ("gamma", 400)]
            .map(|(peer, secs)| (name(peer), Span::secs(secs)))
            .into();
        state.health =
            [("alpha", health(400, Some(730))), ("beta", health(400, None)), ("gamma", health(250, None))]
                .map(|(peer, health)| (name(peer), health))
                .into();
        state.no_gpus.insert(name("gamma"));
    }
    let job = fake.put(Fake::spec("name: training\nresources: {gpus: 4}\nrun: [\"true\"]\n"));
    let peer = crate::surface::cli::tests::peer(fake.clone());
    let client = peer.client();
    let (mut seen, mut screen) = (Seen::new("alpha".into()), Screen::new(View::Clusters));
    seen.take(Ok(look(&client).await.expect("an answer")), wall_now().0);
    let text = text_of(&seen, &mut screen, (80, 24), wall_now().0, false).expect("drawn");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 24);
    assert_eq!(lines[0], "starling top at alpha  3 of 3 peers alive  6 of 16 GPUs free  15 run  1 wait");
    assert!(lines[1].contains("1 clusters") && lines[1].contains("3 by name"), "{text}");
    let (head, rows) = (lines[2], &lines[3..6]);
    for heading in ["CLUSTER", "STATE", "REGION", "GPUS", "FREE/ALL", "USE", "RUN", "WAIT", "NEWS"] {
        assert!(head.contains(heading), "{heading}: {text}");
    }
    let column = |heading: &str, width| -> Vec<String> {
        rows.iter().map(|row| under(head, row, heading, width)).collect()
    };
    // Only what is measured of GPUs is their use: beta's cannot be measured, and gamma has none.
    assert_eq!(column("USE", 4), ["73%", "-", "-"], "{text}");
    assert_eq!(column("FREE/ALL", 9), ["3/8", "3/8", "0/0"], "{text}");
    assert_eq!(column("NEWS", 5)[1..], ["95s", "6m"], "{text}");
    assert!(rows[2].starts_with("gamma ") && rows[2].contains("none"), "{text}");
    assert!(rows[0].contains("#####") && rows[0].contains("..."), "{text}");
    assert!(lines[22].contains("40% of its CPUs in use"), "the chosen row's story: {text}");
    assert!(lines[23].starts_with("q quit"), "{text}");

    press(&seen, &mut screen, "2");
    let text = text_of(&seen, &mut screen, (80, 24), wall_now().0, false).expect("drawn");
    let row = text.lines().nth(3).expect("a row").to_owned();
    assert!(row.starts_with(&job.short()) && row.contains("training") && row.contains("pending"), "{text}");
    fake.place(job, "beta");
    seen.take(Ok(look(&client).await.expect("an answer")), wall_now().0);
    let text = text_of(&seen, &mut screen, (80, 24), wall_now().0, false).expect("drawn");
    let row = text.lines().nth(3).expect("a row").to_owned();
    assert!(row.contains("running") && row.contains("beta"), "{text}");
    peer.end().await;
}
