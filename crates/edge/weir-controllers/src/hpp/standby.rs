use std::{net::TcpListener, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{task::JoinSet, time::sleep};

use crate::{Controller, report::ControllerReport};

/// The interval between attempts to listen. The leader of this process may still be stopping.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Answers `/hpp` with the name of the leader, while this process is not the leader.
pub(crate) struct StandbyServer(JoinSet<()>);

impl StandbyServer {
    /// Starts the server, if one of the controllers serves `/hpp`.
    pub(crate) fn start(controllers: &[Controller], report: &Arc<ControllerReport>) -> Self {
        let mut server = JoinSet::new();
        let address = controllers.iter().find_map(|controller| match controller {
            Controller::Hpp(settings) => settings.http,
            Controller::Workload(_) | Controller::ClusterSet(_) | Controller::Conditions(_) => None,
        });
        if let Some(address) = address {
            let router = Router::new().route("/hpp", get(hpp)).with_state(report.clone());
            server.spawn(async move {
                loop {
                    match TcpListener::bind(address) {
                        Ok(listener) => weir_runtime::http::serve(listener, router.clone()).await,
                        // The leader reports that the address is not free.
                        Err(_) => sleep(RETRY_INTERVAL).await,
                    }
                }
            });
        }
        StandbyServer(server)
    }

    /// Stops the server and frees its address.
    pub(crate) async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

async fn hpp(State(report): State<Arc<ControllerReport>>) -> (StatusCode, String) {
    let why = report.why_standby().unwrap_or_else(|| "the controller is starting".into());
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}
