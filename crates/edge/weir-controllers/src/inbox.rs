use std::{pin::pin, time::Instant};

use futures::future::{Either, select};
use tokio::{sync::mpsc, task::JoinSet, time::sleep_until};

use crate::{Context, Server, Told, Watched, follow::follow};

/// How much news may wait. Those who have more wait, too.
const WAITING: usize = 256;

/// Where a controller hears of everything: its own words for what is told by those it follows, on one API server or several.
#[derive(Debug)]
pub struct Inbox<M> {
    context: Context,
    out: mpsc::Sender<M>,
    news: mpsc::Receiver<M>,
    followers: JoinSet<()>,
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub enum Next<M> {
    /// Something is new.
    News(M),
    /// The time has come.
    Due,
    /// It is time to finish.
    Stop,
}

impl<M: Send + 'static> Inbox<M> {
    /// An inbox that nothing comes into.
    pub fn new(context: &Context) -> Self {
        let (out, news) = mpsc::channel(WAITING);
        Inbox { context: context.clone(), out, news, followers: JoinSet::new() }
    }

    /// Follows objects, for as long as the inbox is there.
    pub fn follow(&mut self, server: &Server, watched: Watched, word: fn(Told) -> M) {
        let (server, pace, out) = (server.clone(), self.context.pace, self.out.clone());
        self.followers.spawn(follow(server, watched, pace, word, out));
    }

    /// Where others put news into.
    pub fn sender(&self) -> mpsc::Sender<M> {
        self.out.clone()
    }

    /// Waits for news, which comes first, or for a time.
    pub async fn next(&mut self, due: Option<Instant>) -> Next<M> {
        if self.context.is_stopped() {
            return Next::Stop;
        }
        if let Ok(news) = self.news.try_recv() {
            return Next::News(news);
        }
        let time = pin!(async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        });
        let news = pin!(self.news.recv());
        let waiting = select(news, time);
        match select(pin!(self.context.stopped()), waiting).await {
            Either::Right((Either::Left((Some(news), _)), _)) => Next::News(news),
            Either::Right((Either::Right(_), _)) => Next::Due,
            // We hold a sender ourselves, so that there is always one.
            Either::Left(_) | Either::Right((Either::Left((None, _)), _)) => Next::Stop,
        }
    }
}
