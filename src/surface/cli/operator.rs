//! `move`, and what an operator says about a job: `job ID confirm-lost`, `job ID release`.

use axum::http::Method;
use serde_json::{Value, json};

use super::args::{JobArgs, JobWord, MoveArgs};
use super::output::plain;
use super::{Asking, CommandResult, Failure, Reply, jobs};
use crate::surface::api::escape;
use crate::surface::client::Payload;
use crate::surface::documents::JobDocument;

/// `starling job ID [confirm-lost|release]`
pub async fn job(asking: &Asking, args: JobArgs) -> CommandResult {
    match args.word {
        None if args.epoch.is_some() || args.yes => Err(Failure::usage(
            "--epoch and --yes belong to confirm-lost",
            "starling job ID confirm-lost --yes",
        )),
        None => jobs::show(asking, &args.id).await,
        Some(JobWord::ConfirmLost) => confirm_lost(asking, args).await,
        Some(JobWord::Release) => {
            let path = format!("/v1/jobs/{}/release", escape(&args.id));
            let job: JobDocument = asking.client.send(Method::POST, &path, None).await?;
            Ok(said(&job))
        }
    }
}

/// Says what it risks first; nothing is done without --yes.
async fn confirm_lost(asking: &Asking, args: JobArgs) -> CommandResult {
    let path = format!("/v1/jobs/{}", escape(&args.id));
    let job: JobDocument = asking.client.get(&path).await?;
    let Some(cluster) = job.cluster.as_ref() else {
        let text = format!("job {} has no attempt at any cluster: {}", job.id.short(), plain(&job.reason));
        return Err(Failure::usage(text, format!("starling job {}", job.id.short())));
    };
    let epoch = args.epoch.unwrap_or(job.epoch);
    if !args.yes {
        let text = format!(
            "this makes job {} run again although attempt {epoch} at {cluster} may still be running: if it is, two \
             copies run at once and can overwrite each other's files. Make sure that its machines are off or its \
             processes gone",
            job.id.short()
        );
        let hint = format!("starling job {} confirm-lost --epoch {epoch} --yes", job.id.short());
        return Err(Failure::usage(text, hint));
    }
    let path = format!("/v1/jobs/{}/confirm-lost", job.id);
    let job: JobDocument = asking.client.send(Method::POST, &path, body(&json!({ "epoch": epoch }))).await?;
    Ok(said(&job))
}

/// `starling move ID CLUSTER`
pub async fn move_job(asking: &Asking, args: MoveArgs) -> CommandResult {
    let path = format!("/v1/jobs/{}/move", escape(&args.id));
    let to = json!({ "to": args.cluster });
    let job: JobDocument = asking.client.send(Method::POST, &path, body(&to)).await?;
    Ok(said(&job))
}

fn body(value: &Value) -> Payload {
    Some(("application/json", value.to_string().into_bytes()))
}

fn said(job: &JobDocument) -> Reply {
    let id = job.id.short();
    Reply::new(job, format!("job {id}: {}\nstarling wait {id}\n", plain(&job.reason)))
}
