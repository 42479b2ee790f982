//! The HTTP API under `/v1`.
//!
//! One table (`routes::ROUTES`) names every route; the router and the OpenAPI document are built
//! from it. Handlers see the peer only through `PeerHandle`.

mod doctor;
mod error;
mod events;
pub(crate) mod history;
mod incidents;
pub(crate) mod input;
pub(crate) mod jobs;
mod limits;
pub(crate) mod local;
mod logs;
pub(crate) mod mesh;
mod metrics;
mod openapi;
mod operator;
mod proxy;
mod reservations;
pub(crate) mod resolve;
mod routes;
mod shapes;
mod tenants;
pub(crate) mod trace;

#[cfg(test)]
#[path = "../../../simulations/system/conforms.rs"]
mod conforms;
#[cfg(test)]
mod openapi_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_mesh;

use std::sync::Arc;

pub use error::{ApiError, ApiResult};
pub use limits::{Address, Caller};
pub(crate) use local::CLAIMS_MAX;
pub use proxy::serve_proxy;
pub(crate) use resolve::escape;
pub use routes::{Watched, router, router_with};

use crate::core::{ClientRequest, ClientResponse};
use crate::runtime::PeerHandle;

/// What every handler has; cloned for each layer of each request.
#[derive(Clone)]
pub(crate) struct Api(Arc<Parts>);

impl std::ops::Deref for Api {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What is in it.
pub(crate) struct Parts {
    pub handle: Arc<dyn PeerHandle>,
    pub limits: Arc<limits::Limits>,
    pub memory: Arc<crate::surface::web::Memory>,
    pub measures: Arc<std::sync::Mutex<crate::surface::measure::Measures>>,
    pub desk: Arc<crate::surface::incidents::Desk>,
    pub exported: Arc<crate::surface::otlp::Counters>,
}

impl Api {
    /// Of a peer and what is gathered beside its API.
    pub fn new(handle: Arc<dyn PeerHandle>, watched: Watched) -> Self {
        let Watched { memory, measures, desk, exported } = watched;
        Self(Arc::new(Parts { handle, limits: Arc::default(), memory, measures, desk, exported }))
    }

    /// Asks the core; its errors become the API's.
    pub async fn call(&self, request: ClientRequest) -> ApiResult<ClientResponse> {
        match self.handle.call(request).await? {
            ClientResponse::Error(error) => Err(error.into()),
            other => Ok(other),
        }
    }
}
