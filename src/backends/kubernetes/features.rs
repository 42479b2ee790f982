//! What the cluster has for gangs and queues, which may come and go: asked for at the start and again and again.
//!
//! What is there is used, and what is not is done without. While it is not known, whatever would use it waits: a job
//! that is made beside Kueue takes what Kueue's quota keeps for others. That something is not there is believed when
//! two answers in a row say so, since servers say it of what they have not loaded yet.

use hyper::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Gangs;
use super::api::{Api, ApiError, unknown};
use super::ends::ABSENT_ANSWERS;
use super::keeper::{Keeper, Live};
use super::make::{COSCHEDULING, KUEUE, VOLCANO};
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::base::{Instant, Span};
use crate::core::api::{AttemptKey, StartCommand};
use crate::model::{JobSpec, Outcome};

/// Between two questions about what is known.
const AGAIN: Span = Span::secs(60);
/// What the server did not let us use is done without for so long.
const REFUSED_FOR: Span = Span::secs(600);

/// Something that not every cluster has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    Kueue,
    Volcano,
    Coscheduling,
}

impl Feature {
    const ALL: [Self; 3] = [Self::Kueue, Self::Volcano, Self::Coscheduling];

    /// API group, version and resource.
    fn resource(self) -> (&'static str, Option<&'static str>, &'static str) {
        match self {
            // Its label is all that is used, so any version will do.
            Self::Kueue => (KUEUE, None, "localqueues"),
            Self::Volcano => (VOLCANO.0, Some(VOLCANO.1), "podgroups"),
            Self::Coscheduling => (COSCHEDULING.0, Some(COSCHEDULING.1), "podgroups"),
        }
    }

    /// Of the folder in which an attempt's PodGroup is made.
    fn of_group(folder: &str) -> Self {
        if folder.contains(VOLCANO.0) { Self::Volcano } else { Self::Coscheduling }
    }
}

/// What is known of one feature.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    there: Option<bool>,
    /// Answers in a row that say that it is not there.
    absent: u32,
    /// When it was asked for last, if that need not be done at once.
    asked: Option<Instant>,
    /// The server refused its use; done without until then.
    off_until: Option<Instant>,
}

/// What is known of all, and the starts that wait for more.
#[derive(Debug, Default)]
pub(super) struct Features {
    known: [Known; Feature::ALL.len()],
    parked: std::collections::BTreeMap<AttemptKey, (StartCommand, Instant)>,
}

impl Features {
    fn of(&self, feature: Feature) -> Known {
        self.known.get(feature as usize).copied().unwrap_or_default()
    }

    /// None: not known yet.
    fn there(&self, feature: Feature, now: Instant) -> Option<bool> {
        let known = self.of(feature);
        if known.off_until.is_some_and(|until| now < until) { Some(false) } else { known.there }
    }

    /// Takes an answer; the news, if it is any.
    pub(super) fn said(
        &mut self,
        feature: Feature,
        answer: Result<bool, ApiError>,
        now: Instant,
    ) -> Option<String> {
        let group = feature.resource().0;
        let known = self.known.get_mut(feature as usize)?;
        let before = known.there;
        known.asked = Some(now);
        match answer {
            Ok(true) => (known.there, known.absent) = (Some(true), 0),
            Ok(false) => {
                known.absent = known.absent.saturating_add(1);
                if known.absent >= ABSENT_ANSWERS {
                    known.there = Some(false);
                } else {
                    known.asked = None;
                }
            }
            // It will not be said to this account. Whoever set a queue says that there is one.
            Err(ApiError::Refused(401 | 403, _)) => {
                (known.there, known.absent) = (Some(feature == Feature::Kueue), 0);
            }
            Err(error) => {
                known.asked = None;
                return before.is_none().then(|| {
                    format!("whether {group} is here is not known yet ({error}): jobs that would use it wait")
                });
            }
        }
        if known.there == before {
            return None;
        }
        Some(match (known.there?, before, feature) {
            (true, ..) => format!("{group} is here and used"),
            (false, Some(_), _) => format!("{group} is not here any more: done without it"),
            (false, None, Feature::Kueue) => {
                "kubernetes.queue is set and Kueue is not here: jobs are made without a queue".into()
            }
            (false, None, _) => return None,
        })
    }
}

impl Keeper {
    /// Features that a job of this cluster may use.
    fn may_use(&self, spec: Option<&JobSpec>) -> impl Iterator<Item = Feature> {
        let queue = self.config.queue.is_some();
        let gang = self.config.pod_groups && spec.is_none_or(|s| s.nodes > 1);
        let wanted = move |feature: &Feature| if *feature == Feature::Kueue { queue } else { gang };
        Feature::ALL.into_iter().filter(wanted)
    }

    /// What a start may use; none: not known yet, and it waits here.
    pub(super) fn gangs_for(&self, start: &StartCommand) -> Option<Gangs> {
        let now = clock::now();
        let mut features = open(&self.features);
        let unknown = self.may_use(Some(&start.spec)).any(|f| features.there(f, now).is_none());
        if unknown {
            features.parked.entry(start.key).or_insert_with(|| (start.clone(), now));
            return None;
        }
        let has = |feature| features.there(feature, now) == Some(true);
        Some(Gangs {
            kueue: has(Feature::Kueue),
            volcano: has(Feature::Volcano),
            coscheduling: has(Feature::Coscheduling),
        })
    }

    /// It does not wait to be started any more.
    pub(super) fn unpark(&self, key: AttemptKey) {
        open(&self.features).parked.remove(&key);
    }

    /// Starts what waited and need not any more; what waited for too long is given back.
    pub(super) fn start_parked(&self) {
        let now = clock::now();
        let (ready, late) = {
            let mut features = open(&self.features);
            let late: Vec<AttemptKey> = features
                .parked
                .iter()
                .filter(|(_, (_, since))| now.since(*since) > self.config.pending_max)
                .map(|(key, _)| *key)
                .collect();
            late.iter().for_each(|key| drop(features.parked.remove(key)));
            let known = |spec: &JobSpec| self.may_use(Some(spec)).all(|f| features.there(f, now).is_some());
            let ready: Vec<AttemptKey> =
                features.parked.iter().filter(|(_, (s, _))| known(&s.spec)).map(|(key, _)| *key).collect();
            let ready: Vec<StartCommand> =
                ready.iter().filter_map(|key| Some(features.parked.remove(key)?.0)).collect();
            (ready, late)
        };
        ready.iter().for_each(|start| self.start(start));
        let why = "what this cluster has for gangs and queues could not be found out";
        late.into_iter().for_each(|key| self.close_unstarted(key, Outcome::Refused(why.into())));
    }

    /// Features whose state is to be asked for now.
    fn features_due(&self, now: Instant) -> Vec<Feature> {
        let features = open(&self.features);
        let due = |f: &Feature| features.of(*f).asked.is_none_or(|at| now.since(at) > AGAIN);
        self.may_use(None).filter(due).collect()
    }

    /// The server does not let a PodGroup be made: done without, and this attempt is placed anew.
    pub(super) fn group_refused(&self, folder: &str, why: &str) {
        let feature = Feature::of_group(folder);
        let now = clock::now();
        if let Some(known) = open(&self.features).known.get_mut(feature as usize) {
            (known.off_until, known.asked) = (Some(now + REFUSED_FOR), None);
        }
        tracing::warn!("{} cannot be used, gangs are placed without it: {why}", feature.resource().0);
    }

    /// Whoever was to let its pods come is not here any more.
    pub(super) fn orphaned(&self, live: &Live) -> Option<Outcome> {
        let suspended = live.job.as_ref().is_some_and(|j| j.spec.suspend);
        let feature = match &live.kept.group {
            _ if live.kept.queued && suspended => Feature::Kueue,
            Some((folder, _)) => Feature::of_group(folder),
            None => return None,
        };
        let gone = open(&self.features).of(feature).there == Some(false);
        gone.then(|| Outcome::Refused(format!("{} is not here any more", feature.resource().0)))
    }
}

/// An API group.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: GroupVersion,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

/// What one version of an API group has.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resources {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    group_version: String,
    #[serde(default)]
    resources: Vec<ResourceName>,
}

#[derive(Debug, Deserialize)]
struct ResourceName {
    #[serde(default)]
    name: String,
}

impl Api {
    /// Whether the server has a resource of an API group: discovery, which every account may ask. A group can be
    /// there without it. Of a group without a version, the one that the server prefers is asked.
    pub(super) async fn has_resource(
        &self,
        group: &str,
        version: Option<&str>,
        resource: &str,
    ) -> Result<bool, ApiError> {
        let of = match version {
            Some(version) => format!("{group}/{version}"),
            None => match self.discover::<Group>(&format!("/apis/{group}")).await? {
                Some(found) => found.preferred_version.group_version,
                None => return Ok(false),
            },
        };
        if of.split('/').next() != Some(group) {
            return Err(unknown("an answer about another API group"));
        }
        let Some(found) = self.discover::<Resources>(&format!("/apis/{of}")).await? else { return Ok(false) };
        if found.kind != "APIResourceList" || found.group_version != of {
            return Err(unknown("an answer that is no list of resources"));
        }
        Ok(found.resources.iter().any(|r| r.name == resource))
    }

    /// None: there is no such group or version.
    async fn discover<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        match self.call(Method::GET, path, None, "", None).await {
            Ok(text) => Self::parse(&text).map(Some),
            Err(error) if error.is_404() => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// Asks for what is to be asked for now; news, a line each.
pub(super) async fn ask(keeper: &Keeper, api: &Api) -> Vec<String> {
    let mut news = Vec::new();
    for feature in keeper.features_due(clock::now()) {
        let (group, version, resource) = feature.resource();
        let answer = api.has_resource(group, version, resource).await;
        news.extend(open(&keeper.features).said(feature, answer, clock::now()));
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_needs_two_answers_and_no_answer_changes_nothing() {
        let mut all = Features::default();
        let now = Instant(1);
        let failed = || Err(ApiError::Unknown("no answer".into()));
        assert!(all.said(Feature::Kueue, failed(), now).is_some_and(|n| n.contains("wait")));
        assert_eq!((all.there(Feature::Kueue, now), all.of(Feature::Kueue).asked), (None, None));
        all.said(Feature::Kueue, Ok(false), now);
        assert_eq!(all.there(Feature::Kueue, now), None, "one answer is none");
        all.said(Feature::Kueue, Ok(false), now);
        assert_eq!(all.there(Feature::Kueue, now), Some(false));
        all.said(Feature::Kueue, Ok(true), now);
        for answer in [failed(), Ok(false), failed()] {
            assert_eq!(all.said(Feature::Kueue, answer, now), None);
            assert_eq!(all.there(Feature::Kueue, now), Some(true));
        }
        assert!(all.said(Feature::Kueue, Ok(false), now).is_some_and(|n| n.contains("any more")));
        assert_eq!(all.there(Feature::Kueue, now), Some(false));
    }

    #[test]
    fn an_account_that_may_not_ask_trusts_a_queue_that_is_set_and_uses_no_groups() {
        let mut all = Features::default();
        let no = || Err(ApiError::Refused(403, "forbidden".into()));
        all.said(Feature::Kueue, no(), Instant(1));
        all.said(Feature::Volcano, no(), Instant(1));
        assert_eq!(all.there(Feature::Kueue, Instant(1)), Some(true));
        assert_eq!(all.there(Feature::Volcano, Instant(1)), Some(false));
    }
}
