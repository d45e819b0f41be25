//! What all handles share with the task that keeps the connection.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use super::connect::RedisLink;
use super::server_runs::ServerRuns;
use crate::lock::lock;

/// The connection that all handles use.
#[derive(Debug)]
pub(super) struct SharedLink {
    prefix: String,
    permits: Semaphore,
    /// The connection, and its number.
    link: Mutex<Option<(u64, RedisLink)>>,
    server: watch::Sender<RedisServer>,
    /// Woken when the present connection is broken.
    broken: Notify,
    /// Woken when a command of a Cluster had no answer.
    doubted: Notify,
}

/// The server behind the present or the last connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisServer {
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// Connections made so far: notices between two connections were missed.
    pub connects: u64,
    /// The run id of the server, another one after a restart or a failover; those of all masters in a Cluster.
    pub run_id: Arc<str>,
    /// When the server began this run, or was found in place of another: the run may lack earlier data. `None` where that
    /// is longer ago than can be told.
    pub began: Option<Instant>,
}

impl SharedLink {
    /// Without a connection.
    pub(super) fn new(prefix: &str, max_commands: usize) -> Self {
        Self {
            prefix: prefix.to_owned(),
            permits: Semaphore::new(max_commands),
            link: Mutex::default(),
            server: watch::Sender::default(),
            broken: Notify::new(),
            doubted: Notify::new(),
        }
    }

    /// What every key begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The server, and whether it is connected.
    pub(super) fn server(&self) -> watch::Receiver<RedisServer> {
        self.server.subscribe()
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.server.borrow().is_connected
    }

    /// The present connection and its number.
    pub(super) fn present(&self) -> Option<(u64, RedisLink)> {
        lock(&self.link).clone()
    }

    /// The right to have one more command under way.
    pub(super) fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.try_acquire().ok()
    }

    /// Waits until the present connection is given up.
    pub(super) async fn until_broken(&self) {
        self.broken.notified().await;
    }

    /// Takes a connection into use, to servers of these runs.
    pub(super) fn publish(&self, link: RedisLink, runs: &ServerRuns) {
        self.server.send_modify(|server| {
            server.connects += 1;
            server.is_connected = true;
            (server.run_id, server.began) = (runs.name(), runs.began());
            *lock(&self.link) = Some((server.connects, link));
        });
    }

    /// Tells that masters of a Cluster have other runs.
    pub(super) fn tell(&self, runs: &ServerRuns) {
        self.server
            .send_modify(|server| (server.run_id, server.began) = (runs.name(), runs.began()));
    }

    /// Takes another connection to the same Cluster into use. Commands under way end on the former one.
    pub(super) fn replace(&self, link: RedisLink) {
        if let Some((_, present)) = lock(&self.link).as_mut() {
            *present = link;
        }
    }

    /// A command failed on the connection with this number: one server is given up, as all that follows would fail
    /// too; of a Cluster one node may be silent, which its keeper finds out.
    pub(super) fn failed(&self, number: u64) {
        let is_cluster = matches!(&*lock(&self.link), Some((_, RedisLink::Cluster(_))));
        if is_cluster {
            self.doubted.notify_one();
        } else {
            self.give_up(number);
        }
    }

    /// Waits until a command of a Cluster had no answer.
    pub(super) async fn until_doubted(&self) {
        self.doubted.notified().await;
    }

    /// Gives the present connection up.
    pub(super) fn give_up_present(&self) {
        let number = self.server.borrow().connects;
        self.give_up(number);
    }

    /// Gives up the connection with this number: commands are refused until the next connection.
    fn give_up(&self, number: u64) {
        let ended = self.server.send_if_modified(|server| {
            let is_present = server.connects == number && server.is_connected;
            if is_present {
                server.is_connected = false;
                *lock(&self.link) = None;
            }
            is_present
        });
        if ended {
            self.broken.notify_one();
        }
    }
}
