//! A job whose groups need two clusters, with real processes.

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};

/// Both groups start together. One fails: the other is stopped, and both begin again under the next epoch. Everybody
/// knows where the others are, and each group has its own logs.
#[test]
fn groups_run_in_two_clusters_and_begin_again_together() {
    let mesh = Mesh::start([Plan::new("alpha"), Plan::new("beta")]);
    let state = mesh.state("alpha");
    let folder = mesh.folder.path().join("ran");
    std::fs::create_dir(&folder).expect("a folder");
    let spec = format!(
        "name: pair\ncommunication: async\nretries: 1\ngroups:\n- {{name: left, resources: {{gpus: 3}}}}\n- {{name: right, \
         resources: {{gpus: 3}}}}\nrun: |\n  echo $STARLING_GROUP_CLUSTERS >{0}/$STARLING_GROUP-$STARLING_EPOCH\n  echo \
         this is $STARLING_GROUP\n  [ $STARLING_EPOCH = 2 ] && exit 0\n  while [ ! -e {0}/left-1 -o ! -e {0}/right-1 ]; do \
         sleep 0.1; done\n  [ $STARLING_GROUP = right ] && exit 7\n  trap 'exit 143' TERM\n  while :; do sleep 0.1; done\n",
        folder.display()
    );
    let id = submit(state, &spec);
    let job = succeeded(state, &id);
    assert_eq!(
        (&job["failures"], &job["losses"], &job["epoch"]),
        (&json!(1), &json!(0), &json!(2)),
        "{job:#}"
    );
    let groups = job["groups"].as_array().expect("groups");
    let at: Vec<&str> = groups.iter().filter_map(|g| g["cluster"].as_str()).collect();
    assert!(at.len() == 2 && at[0] != at[1], "{job:#}");
    for group in ["left", "right"] {
        let read = |epoch| std::fs::read_to_string(folder.join(format!("{group}-{epoch}"))).expect("it ran");
        assert_eq!(read(2).trim(), format!("left={},right={}", at[0], at[1]));
        assert!(read(1).contains("left=") && read(1).contains("right="));
        let part = cli(state, &["logs", &format!("{id}.{group}")]).ok();
        assert!(part.out.contains(&format!("this is {group}")), "{}", part.out);
        let part = cli(state, &["--json", "job", &format!("{id}.{group}")]).ok().json();
        let outcomes: Vec<_> = of_attempts(&part, "outcome");
        assert_eq!(outcomes.len(), 2, "{part:#}");
        assert_eq!(
            (&part["state"], &part["group_of"], &outcomes[1]),
            (&json!("succeeded"), &json!(id), &exited(0))
        );
    }
    let shown = cli(state, &["job", &id]).ok().out;
    assert!(shown.contains("left (") && shown.contains("3 GPU(s) at "), "{shown}");
    let whole = cli(state, &["logs", &id]);
    assert!(whole.err.contains(".left") && whole.code == 3, "{} {}", whole.code, whole.err);
    // What can never be together is refused, with words.
    let large = spec.replace("gpus: 3", "gpus: 5");
    let (status, error) = try_submit(state, &large, None).expect_err("it fits nowhere");
    assert_eq!((status, error.code.as_str()), (422, "groups_fit_nowhere"), "{error:?}");
    // A cancel ends both.
    let endless = spec.replace("[ $STARLING_GROUP = right ] && exit 7", "true");
    let id = submit(state, &endless);
    in_state(state, &id, &["running"]);
    cli(state, &["cancel", &id]).ok();
    assert_eq!(ended(state, &id)["state"], json!("cancelled"));
    assert_eq!(ended(state, &format!("{id}.left"))["state"], json!("cancelled"));
}
