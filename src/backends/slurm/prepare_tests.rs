//! What sbatch is told for which job.

use std::collections::BTreeMap;

use super::*;
use crate::backends::conformance;
use crate::backends::local::files::NoticeTo;
use crate::base::{Bytes, MilliCpu, PeerName};

fn config() -> SlurmConfig {
    SlurmConfig::new(
        "/shared/starling".into(),
        "/bin/starling".into(),
        PeerName::new("here").expect("a name"),
    )
}
fn map() -> NodeMap {
    let mut map = NodeMap::default();
    map.types = BTreeMap::from([("H100".to_owned(), "h100".to_owned())]);
    map
}
fn told(spec: &JobSpec) -> Vec<String> {
    let directives = sbatch::batch_script(&spec.run).map(|t| sbatch::directives(t).0).unwrap_or_default();
    let all = options(spec, &config(), &map(), &directives);
    all.into_iter().map(|(n, v)| if v.is_empty() { n } else { format!("{n}={v}") }).collect()
}

#[test]
fn a_job_file_becomes_options() {
    let mut spec = conformance::script("true");
    assert_eq!(told(&spec), ["nodes=1", "ntasks=1", "ntasks-per-node=1", "cpus-per-task=1"]);
    spec.nodes = 2;
    spec.resources.gpus = 4;
    spec.resources.gpu = vec!["B200".into(), "H100".into()];
    spec.resources.cpus = MilliCpu(2_500);
    spec.resources.memory = Bytes::gib(3);
    spec.max_runtime = Some(Span::secs(3_600));
    assert_eq!(
        told(&spec),
        [
            "nodes=2",
            "ntasks=2",
            "ntasks-per-node=1",
            "cpus-per-task=3",
            "mem=3072M",
            "gres=gpu:h100:4",
            "time=61:30"
        ]
    );
}

#[test]
fn the_users_lines_stay_as_they_are() {
    let text = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=a100:8\n#SBATCH -p big -t 10\n\
                #SBATCH --constraint=\"ib&fast\" --exclusive\n#SBATCH --output=x.out --job-name=mine --requeue\n\
                #SBATCH --array=1-9 --signal=B:USR1@30\nsrun ./train\n";
    let mut spec = conformance::spec(Run::Argv(vec!["/bin/bash".into(), "-c".into(), text.into()]));
    spec.nodes = 2;
    spec.resources.gpus = 8;
    spec.max_runtime = Some(Span::secs(600));
    assert_eq!(
        told(&spec),
        [
            "nodes=2",
            "ntasks-per-node=8",
            "gpus-per-node=a100:8",
            "partition=big",
            "time=10",
            "constraint=ib&fast",
            "exclusive",
            "signal=B:USR1@30"
        ]
    );
}

/// It comes before the limit: Slurm is told, and so is the guard; the notice after a limit stays what it was.
#[test]
fn a_signal_before_the_limit_is_slurms_and_the_guards() {
    let guard = |line: &str| {
        let text = format!("#!/bin/bash\n#SBATCH -t 10 {line}\n./train\n");
        let mut spec = conformance::spec(Run::Argv(vec!["/bin/bash".into(), "-c".into(), text]));
        spec.max_runtime = Some(Span::secs(600));
        let folder = tempfile::tempdir().expect("a folder");
        let dir = AttemptDir::new(folder.path().join("a"));
        let command = conformance::start(conformance::key(1), spec);
        let kept = prepare(&command, &config(), &map(), Span::secs(30), &dir)?.expect("new");
        let told = kept.options.into_iter().find(|(name, _)| name == "signal").map(|(_, value)| value);
        Ok::<_, String>((told, dir.spec().expect("its spec")))
    };
    for (line, slurm, signal, to, before) in [
        ("--signal=B:USR1@120", Some("B:USR1@120"), 10, NoticeTo::First, 120),
        ("--signal=SIGUSR2", Some("B:USR2@60"), 12, NoticeTo::Others, 60),
        ("--signal=B:TERM@90", None, 15, NoticeTo::First, 90),
    ] {
        let (told, guard) = guard(line).expect("prepares");
        assert_eq!(told.as_deref(), slurm, "{line}");
        assert_eq!((guard.notice_signal, guard.notice_to), (Some(signal), to), "{line}");
        assert_eq!((guard.warn_before, guard.notice), (Some(Span::secs(before)), config().notice), "{line}");
    }
    let why = guard("--signal=KILL@9").expect_err("nobody can catch it");
    assert!(why.contains("USR1"), "{why}");
}

#[test]
fn where_no_guard_can_stand_it_is_said() {
    let text = "#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n";
    let mut spec = conformance::spec(Run::Argv(vec!["/bin/bash".into(), "-c".into(), text.into()]));
    spec.nodes = 2;
    let folder = tempfile::tempdir().expect("a folder");
    let dir = AttemptDir::new(folder.path().join("a"));
    let command = conformance::start(conformance::key(1), spec.clone());
    let why = prepare(&command, &config(), &map(), Span::secs(30), &dir).expect_err("no guard");
    assert!(why.contains("grace: never"), "{why}");
    spec.on_lost_contact.grace = None;
    let command = conformance::start(conformance::key(1), spec);
    let kept = prepare(&command, &config(), &map(), Span::secs(30), &dir).expect("prepares").expect("new");
    assert_eq!((kept.parts, kept.grace), (0, None));
    assert!(kept.script.contains("guard '") && !kept.script.contains("#SBATCH"));
}

#[test]
fn a_gang_has_a_guard_on_every_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = AttemptDir::new(folder.path().join("a"));
    let mut spec = conformance::script("true");
    spec.nodes = 3;
    let command = conformance::start(conformance::key(1), spec);
    let kept = prepare(&command, &config(), &map(), Span::secs(30), &dir).expect("prepares").expect("new");
    assert_eq!(kept.parts, 3);
    for n in 0..3 {
        let node = AttemptDir::new(dir.path().join(format!("node-{n}"))).spec().expect("its spec");
        assert_eq!(node.first_rank, n);
        assert!(node.ranks[0].env.contains(&("RANK".into(), n.to_string())));
        assert!(node.workdir.ends_with(format!("a/node-{n}/run")), "{:?}", node.workdir);
    }
    assert!(dir.spec().expect("its spec").ranks[0].argv[2].contains("srun --nodes=3"));
    assert_eq!(prepare(&command, &config(), &map(), Span::secs(30), &dir), Ok(None), "its name is taken");
}
