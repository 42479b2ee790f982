//! What an attempt that has not begun may wait for, and when it is given back.

use super::ends::OVER_PATIENCE;
use super::keeper::Live;
use super::objects::Job;
use super::pods::{PodView, Trouble};
use crate::backends::local::clock;
use crate::base::{Instant, Span, WallTime};
use crate::model::Outcome;
use crate::model::staging::{Part, PartKind, PartState, Staging};

/// An adopted attempt that waits, and that the core has not asked for again by then, is given up.
const WANTED_WITHIN: Span = Span::secs(300);
/// Pods that cannot be made for so long: given back.
const EVENT_PATIENCE: Span = Span::secs(30);

/// Whose room it is.
const ROOM: &str = "in Kubernetes";

/// How long what may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Waiting for room.
    pub pending: Span,
    /// Pulling an image.
    pub pull: Span,
}

/// Why an attempt that has not begun is given back; none while it may still wait.
pub(super) fn overdue(live: &Live, limits: &Limits, now: Instant) -> Option<Outcome> {
    if !live.wanted && now.since(live.since) > WANTED_WITHIN {
        return Some(Outcome::Refused("nobody asked for it after the peer was started again".into()));
    }
    if let Some((why, at)) = &live.event
        && live.pods.is_empty()
        && now.since(*at) > EVENT_PATIENCE
    {
        return Some(Outcome::Refused(format!("its pods cannot be made: {why}")));
    }
    if live.over_since.is_some_and(|at| now.since(at) > OVER_PATIENCE) {
        let failed = live.job.as_ref().and_then(|j| j.is("Failed"));
        let why = failed
            .map_or("its Job ended before it began".to_owned(), |c| format!("{}: {}", c.reason, c.message));
        return Some(Outcome::Refused(why));
    }
    if let Some(since) = live.pulling_since {
        let late = now.since(since) > limits.pull;
        return late.then(|| {
            let seconds = limits.pull.as_secs_f64();
            Outcome::Refused(format!("its image was not there within {seconds} s: {}", live.doing))
        });
    }
    let late = live.pending_since.is_some_and(|at| now.since(at) > limits.pending);
    late.then(|| {
        let seconds = limits.pending.as_secs_f64();
        Outcome::Refused(format!("Kubernetes did not start it within {seconds} s: {}", live.doing))
    })
}

/// What a pod that has not begun says; an outcome where it never will.
pub(super) fn waits(live: &mut Live, pod: &PodView, there: bool) -> Option<Outcome> {
    live.event = None;
    if let Some(trouble) = &pod.trouble {
        live.doing = trouble.to_string();
    }
    let pulls = matches!(&pod.trouble, Some(Trouble::Pulling | Trouble::PullFails(_)));
    if pulls {
        live.pulling_since.get_or_insert(clock::now());
    } else if !live
        .pods
        .values()
        .any(|p| matches!(&p.trouble, Some(Trouble::Pulling | Trouble::PullFails(_))))
    {
        live.pulling_since = None;
    }
    // Pods that are taken back on purpose end, too.
    if live.holding || !there || matches!(pod.trouble, Some(Trouble::Deleted(_))) {
        return None;
    }
    match &pod.trouble {
        Some(Trouble::Impossible(why)) => return Some(Outcome::NotStarted(why.clone())),
        Some(why @ (Trouble::Evicted(_) | Trouble::Preempted | Trouble::NodeLost)) if pod.over => {
            return Some(Outcome::Refused(why.to_string()));
        }
        _ => {}
    }
    let ended = pod.ended.as_ref()?;
    Some(match pod.last_word().map(|w| w.outcome) {
        Some(outcome @ (Outcome::NotStarted(_) | Outcome::Refused(_))) => outcome,
        _ => Outcome::NotStarted(format!(
            "its guard ended before it began: exit code {} {}",
            ended.exit_code, ended.reason
        )),
    })
}

/// What it waits for, where that changed: room and its image. Kubernetes says no bytes of a pull.
pub(super) fn told(live: &mut Live, pulled_since: Option<Instant>) -> Option<Staging> {
    let now = clock::wall();
    let news = [room(live, now), image(live, pulled_since, now)];
    if !news.contains(&true) {
        return None;
    }
    let parts = live.room.iter().chain(&live.image).cloned().collect();
    Some(Staging { parts, at: now })
}

/// Whether it may use what the cluster has for gangs and queues is not known yet.
pub(super) fn unknown_features() -> Staging {
    let now = clock::wall();
    let note = "what the cluster has for gangs and queues is not known yet".into();
    Staging { parts: vec![Part { from: Some(now), note, ..Part::needed(PartKind::Room, ROOM) }], at: now }
}

/// Why it has no room yet.
fn no_room(live: &Live) -> Option<String> {
    if live.back.is_some() {
        return Some(live.doing.clone()).filter(|d| !d.is_empty());
    }
    if let Some((why, _)) = live.event.as_ref().filter(|_| live.pods.is_empty()) {
        return Some(format!("its pods cannot be made: {why}"));
    }
    let suspended = live.job.as_ref().is_some_and(|j| j.spec.suspend);
    if live.kept.queued && suspended {
        return Some("its queue says when it begins".into());
    }
    if !live.kept.queued && !live.released && live.kept.parts > 1 && live.uid.is_some() {
        return Some("suspended until the gang fits".into());
    }
    let of = |p: &PodView| p.trouble.as_ref().filter(|t| matches!(t, Trouble::Unschedulable(_))).cloned();
    live.pods.values().find_map(of).map(|t| t.to_string())
}

fn room(live: &mut Live, now: WallTime) -> bool {
    let part = match (no_room(live), &live.room) {
        (None, None) => return false,
        (Some(note), old) => {
            // Waiting again, it begins anew.
            let from =
                old.as_ref().filter(|p| p.state == PartState::Waits).and_then(|p| p.from).unwrap_or(now);
            Part { from: Some(from), note, ..Part::needed(PartKind::Room, ROOM) }
        }
        (None, Some(old))
            if old.state == PartState::There || live.pods.values().all(|p| p.node.is_none()) =>
        {
            return false;
        }
        (None, Some(old)) => {
            Part { state: PartState::There, to: Some(now), note: String::new(), ..old.clone() }
        }
    };
    let news = live.room.as_ref() != Some(&part);
    live.room = Some(part);
    news
}

fn image(live: &mut Live, pulled_since: Option<Instant>, now: WallTime) -> bool {
    let fails = live.pods.values().find_map(|p| match &p.trouble {
        Some(Trouble::PullFails(why)) => Some(format!("ImagePullBackOff: {why}")),
        _ => None,
    });
    if live.pulling_since.is_none() && pulled_since.is_none() {
        return false;
    }
    let image = live.kept.job.pointer("/spec/template/spec/containers/0/image").and_then(|v| v.as_str());
    let begun = || Part {
        from: Some(now),
        state: PartState::Comes,
        ..Part::needed(PartKind::Image, image.unwrap_or("of its pods"))
    };
    let mut part = live.image.clone().unwrap_or_else(begun);
    (part.state, part.note) = match (live.pulling_since, fails) {
        (None, _) => (PartState::There, String::new()),
        (Some(_), Some(why)) => (PartState::Fails, why),
        (Some(_), None) => (PartState::Comes, String::new()),
    };
    part.to = live.pulling_since.is_none().then_some(now);
    let news = live.image.as_ref() != Some(&part);
    live.image = Some(part);
    news
}

/// The exit code in the words of a Job's pod failure policy.
pub(super) fn failed_with(job: &Job) -> Option<i32> {
    let words = &job.is("Failed")?.message;
    let after = words.split("failed with exit code ").nth(1)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_of_a_pod_that_is_gone_is_in_its_jobs_words() {
        let job = |message: &str| -> Job {
            let condition = serde_json::json!({ "type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": message });
            serde_json::from_value(serde_json::json!({ "status": { "conditions": [condition] } }))
                .expect("a job")
        };
        let words =
            "Container main for pod default/x-0 failed with exit code 42 matching FailJob rule at index 0";
        assert_eq!(failed_with(&job(words)), Some(42));
        assert_eq!(failed_with(&job("Job has reached the specified backoff limit")), None);
        assert_eq!(failed_with(&Job::default()), None);
    }
}
