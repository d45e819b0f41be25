//! What all handles share with the task that keeps the connection.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use super::connect::RedisLink;
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
}

/// The server behind the present or the last connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisServer {
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// Connections made so far: notices between two connections were missed.
    pub connects: u64,
    /// The run id of the server, another one after a restart or a failover; `cluster` in a Cluster.
    pub run_id: Arc<str>,
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

    /// Takes a connection into use.
    pub(super) fn publish(&self, link: RedisLink, run_id: Arc<str>) {
        self.server.send_modify(|server| {
            server.connects += 1;
            (server.is_connected, server.run_id) = (true, run_id);
            *lock(&self.link) = Some((server.connects, link));
        });
    }

    /// Gives up the connection with this number: commands are refused until there is another one.
    pub(super) fn give_up(&self, number: u64) {
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
