//! The document's top level.

use super::keys::{FAMILIAR_JOB, JOB};
use super::{ParsedSpec, SpecDefaults, later, parts};
use crate::base::Span;
use crate::model::input::{Field, Fields, Mistakes, Value, words};
use crate::model::spec::{CheckpointSpec, Communication, JobSpec, OnLostContact, Run, Then, limits};

/// Longest `max_runtime` and `grace`.
pub const SPAN_MAX: Span = Span::secs(10 * 366 * 86_400);

/// Reads a whole document. None, or notes in `m`, where something is wrong.
pub fn read(root: Field, defaults: &SpecDefaults, m: &mut Mistakes) -> Option<ParsedSpec> {
    if !matches!(root.node.value, Value::Map(_)) {
        root.wrong(m, "must be a mapping of keys to values, such as `run: python train.py`");
        return None;
    }
    let mut fields = Fields::of(root, m)?;
    later::refuse_all(&mut fields, JOB, m);

    let job_id = fields.has("job_id");
    let name = either(&mut fields, "name", "job_id", m).and_then(|f| named(f, m));
    let tenant = fields.take("tenant", m).and_then(|f| named(f, m));
    let priority = fields.take("priority", m).and_then(|f| priority(f, m));
    let groups = super::groups::groups(&mut fields, m);
    let resources = resources(&mut fields, m);
    let nodes = fields.take("nodes", m).and_then(|f| f.whole32(m, 1..=limits::NODES_MAX));
    let image = fields.take("image", m).and_then(|f| image(f, m));
    let run = run(&mut fields, m);
    let mut env = fields.take("env", m).map(|f| parts::env(f, m)).unwrap_or_default();
    if let Some(kind) = fields.take("task_type", m).and_then(|f| named(f, m)) {
        env.entry("TASK_TYPE".into()).or_insert(kind);
    }
    let workdir = fields.take("workdir", m).and_then(|f| {
        f.read(m, "must be an absolute path at the cluster (local folders are not uploaded)", |t| {
            words::absolute(t).then(|| t.to_owned())
        })
    });
    let (data, data_sizes) =
        either(&mut fields, "data", "dataset", m).map(|f| parts::data(f, m)).unwrap_or_default();
    let checkpoint = checkpoint(&mut fields, m);
    let communication = either(&mut fields, "communication", "communication_mode", m).and_then(|f| {
        let modes =
            [("sync", Communication::Sync), ("async", Communication::Async), ("none", Communication::None)];
        f.word(m, &modes)
    });
    let max_runtime = max_runtime(&mut fields, m);
    let retries = fields.take("retries", m).and_then(|f| f.whole32(m, 0..=limits::RETRIES_MAX));
    let contact = OnLostContact { grace: defaults.grace, then: Then::default() };
    let on_lost_contact = fields.take("on_lost_contact", m).and_then(|f| parts::lost_contact(f, contact, m));
    let placement = fields.take("placement", m).and_then(|f| parts::placement(f, m));
    let array = fields.take("array", m).and_then(|f| match groups.list.is_empty() {
        true => super::array::array(f, m),
        false => {
            f.wrong(m, "a job with groups cannot be an array: submit it several times");
            None
        }
    });
    let after = fields.take("after", m).map(|f| super::array::after(f, m)).unwrap_or_default();
    let preemptible = fields.take("preemptible", m).and_then(|f| f.flag(m));
    let warn = fields.take("warn", m).and_then(|f| parts::warn(f, m));
    fields.finish(m, JOB, FAMILIAR_JOB);

    let name = name.unwrap_or_else(|| "job".into());
    let (resources, nodes) =
        super::groups::largest(&groups).unwrap_or_else(|| (resources, nodes.unwrap_or(1)));
    let spec = JobSpec {
        tenant: tenant.unwrap_or_else(|| "default".into()),
        priority: priority.unwrap_or(50),
        resources,
        nodes,
        data_sizes,
        groups,
        run: run?,
        env,
        workdir,
        image,
        data,
        checkpoint,
        communication: communication.unwrap_or_default(),
        max_runtime,
        retries: retries.unwrap_or(0),
        on_lost_contact: on_lost_contact.unwrap_or(contact),
        placement: placement.unwrap_or_default(),
        array,
        after: Vec::new(),
        preemptible,
        reserve: None,
        warn,
        name: name.clone(),
    };
    Some(ParsedSpec { spec, key: job_id.then_some(name), after })
}

/// Takes the key or the job request's name for it; both at once is a mistake.
fn either(fields: &mut Fields, key: &str, request: &str, m: &mut Mistakes) -> Option<Field> {
    let (first, second) = (fields.take(key, m), fields.take(request, m));
    if let (Some(_), Some(field)) = (&first, &second) {
        field.wrong(m, format!("says the same as {key}: keep one of them"));
    }
    first.or(second)
}

fn named(field: Field, m: &mut Mistakes) -> Option<String> {
    field.read(m, words::NAME, |t| words::name(t).then(|| t.to_owned()))
}

fn priority(field: Field, m: &mut Mistakes) -> Option<u8> {
    let classes = [("low", 25), ("normal", 50), ("high", 75)];
    match &field.node.value {
        Value::Text(text) => {
            if let Some((_, n)) = classes.iter().find(|(name, _)| name == text) {
                return Some(*n);
            }
        }
        Value::Int(n) if (0..=100).contains(n) => return u8::try_from(*n).ok(),
        _ => {}
    }
    field.wrong(m, "must be a whole number from 0 to 100, or low, normal or high");
    None
}

fn resources(fields: &mut Fields, m: &mut Mistakes) -> crate::model::Resources {
    let ours = fields.take("resources", m);
    let request = fields.take("gpu", m);
    if let (Some(_), Some(field)) = (&ours, &request) {
        field.wrong(m, "says the same as resources: keep one of them");
    }
    match (ours, request) {
        (Some(field), _) => parts::resources(field, m),
        (None, Some(field)) => parts::request_gpu(field, m),
        (None, None) => parts::no_resources(),
    }
}

fn image(field: Field, m: &mut Mistakes) -> Option<String> {
    let docker = matches!(&field.node.value, Value::Text(t) if t.starts_with("docker:"));
    let want = if docker {
        "must be the image alone: leave out docker:"
    } else {
        "must be a container image such as registry.example.com/team/train:1.2 or name@sha256:…"
    };
    field.read(m, want, |t| (!docker && words::image(t)).then(|| t.to_owned()))
}

fn run(fields: &mut Fields, m: &mut Mistakes) -> Option<Run> {
    if !fields.has("run") {
        // The image may be taken and wrong: then that is the mistake to name, and this one is not.
        if fields.had("image") {
            return Some(Run::Image);
        }
        fields.missing(
            m,
            "run",
            "is missing: a shell script, or a list of a program and its arguments (or give an image)",
        );
        return None;
    }
    let field = fields.take("run", m)?;
    let max = limits::RUN_BYTES_MAX;
    match &field.node.value {
        Value::Text(script) if !script.trim().is_empty() && script.len() <= max && !script.contains('\0') => {
            Some(Run::Script(script.clone()))
        }
        Value::List(items) if !items.is_empty() && items.len() <= 1_024 => argv(field, m),
        _ => {
            field.wrong(
                m,
                format!(
                    "must be a shell script, or a list of a program and its arguments, of at most {max} bytes"
                ),
            );
            None
        }
    }
}

fn argv(field: Field, m: &mut Mistakes) -> Option<Run> {
    let (path, line) = (field.path.clone(), field.node.line);
    let items = field.items(m, 1_024)?;
    let count = items.len();
    let args: Vec<String> = items.into_iter().filter_map(|item| item.spelled(m, "must be text")).collect();
    let bytes: usize = args.iter().map(String::len).sum();
    let good = !args.first().is_some_and(|program| program.trim().is_empty())
        && bytes <= limits::RUN_BYTES_MAX
        && !args.iter().any(|a| a.contains('\0'));
    if !good {
        let want =
            format!("must name a program first, with no NUL, in at most {} bytes", limits::RUN_BYTES_MAX);
        let value = Some(format!("{count} arguments, {bytes} bytes"));
        m.add(crate::model::input::Mistake { key: path, line, value, want });
    }
    (good && args.len() == count).then_some(Run::Argv(args))
}

fn checkpoint(fields: &mut Fields, m: &mut Mistakes) -> Option<CheckpointSpec> {
    let ours = fields.take("checkpoint", m);
    let request = fields.take("checkpoint_path", m);
    if let (Some(_), Some(field)) = (&ours, &request) {
        field.wrong(m, "says the same as checkpoint: keep one of them");
    }
    ours.or(request).and_then(|f| parts::checkpoint(f, m))
}

fn max_runtime(fields: &mut Fields, m: &mut Mistakes) -> Option<Span> {
    let seconds = fields.take("max_runtime_seconds", m);
    let ours = fields.take("max_runtime", m);
    if let (Some(_), Some(field)) = (&ours, &seconds) {
        field.wrong(m, "says the same as max_runtime: keep one of them");
    }
    match (ours, seconds) {
        (Some(field), _) => crate::model::input::fill::span(field, m, Span::secs(1), SPAN_MAX),
        (None, Some(field)) => field.whole(m, 1..=SPAN_MAX.0 / 1_000_000).map(Span::secs),
        (None, None) => None,
    }
}
