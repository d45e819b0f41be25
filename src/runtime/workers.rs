//! Worker threads: each runs its own runtime, and tasks stay on the worker that spawned them. A connection, its
//! calls and their upstream connections never pass through the queue of another thread (`docs/adr/0010`).

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Number of the current worker thread, from 0; any other thread counts as worker 0.
#[must_use]
pub fn current() -> usize {
    NUMBER.get()
}

/// The pool of workers; the first is the thread that created the pool.
#[derive(Debug)]
pub struct WorkerPool {
    first: Runtime,
    others: Vec<JoinHandle<()>>,
    workers: Workers,
    stop: CancellationToken,
}

/// Where connections can be placed. Clones share the places.
#[derive(Debug, Clone)]
pub struct Workers(Arc<[Arc<WorkerThread>]>);

#[derive(Debug)]
struct WorkerThread {
    runtime: Handle,
    placed: AtomicUsize,
}

/// A place on a worker, free again when dropped.
#[derive(Debug)]
pub struct WorkerSlot(Arc<WorkerThread>);

impl WorkerPool {
    /// Starts `count` workers, one at least.
    ///
    /// # Errors
    /// The system has no thread or no event queue for a worker.
    pub fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let first = alone()?;
        let mut handles = vec![first.handle().clone()];
        let mut others = Vec::new();
        for number in 1..count {
            let runtime = alone()?;
            handles.push(runtime.handle().clone());
            let stop = stop.clone();
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            others.push(thread.spawn(move || {
                NUMBER.set(number);
                // With the runtime all its tasks end.
                runtime.block_on(stop.cancelled_owned());
            })?);
        }
        Ok(Self {
            first,
            others,
            workers: Workers::of(handles),
            stop,
        })
    }

    /// Does `work` on the first worker, until it ends.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.first.block_on(work)
    }

    /// Where connections can be placed.
    #[must_use]
    pub fn workers(&self) -> &Workers {
        &self.workers
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.others.drain(..) {
            // A panic of the worker is already logged by the panic hook.
            drop(thread.join());
        }
    }
}

impl Workers {
    /// The runtime that calls, as the only worker.
    #[must_use]
    pub fn only_this() -> Self {
        Self::of(vec![Handle::current()])
    }

    fn of(runtimes: Vec<Handle>) -> Self {
        let worker = |runtime| {
            Arc::new(WorkerThread {
                runtime,
                placed: AtomicUsize::new(0),
            })
        };
        Self(runtimes.into_iter().map(worker).collect())
    }

    /// A place on the worker that has the fewest.
    #[must_use]
    pub fn place(&self) -> Option<WorkerSlot> {
        let placed = |worker: &&Arc<WorkerThread>| worker.placed.load(Ordering::Relaxed);
        let worker = self.0.iter().min_by_key(placed)?;
        worker.placed.fetch_add(1, Ordering::Relaxed);
        Some(WorkerSlot(Arc::clone(worker)))
    }
}

impl WorkerSlot {
    /// The worker's runtime.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.0.runtime
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.0.placed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A runtime for one thread: a worker, or a command without listeners.
///
/// # Errors
/// The system has no event queue for it.
pub fn alone() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn each_worker_is_a_thread_with_a_number() {
        let pool = WorkerPool::start(3).unwrap();
        let seats: Vec<WorkerSlot> = (0..3).filter_map(|_| pool.workers().place()).collect();
        let tasks = seats.iter().map(|slot| {
            slot.runtime()
                .spawn(async { (current(), thread::current().id()) })
        });
        let tasks: Vec<_> = tasks.collect();
        let found = pool.block_on(futures_util::future::join_all(tasks));
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        let numbers: BTreeSet<usize> = found.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, BTreeSet::from([0, 1, 2]));
        assert!(found.contains(&(0, thread::current().id())));
    }

    #[test]
    fn the_emptiest_worker_is_next() {
        let pool = WorkerPool::start(2).unwrap();
        let place = || pool.workers().place().unwrap();
        let id = |slot: &WorkerSlot| slot.runtime().id();
        let (a, b) = (place(), place());
        assert_ne!(id(&a), id(&b));
        let left = id(&a);
        drop(a);
        assert_eq!(id(&place()), left);
    }

    #[test]
    fn what_runs_on_a_worker_ends_with_the_crew() {
        let pool = WorkerPool::start(2).unwrap();
        let seats: Vec<WorkerSlot> = (0..2).filter_map(|_| pool.workers().place()).collect();
        let alive = Arc::new(());
        for slot in &seats {
            let alive = Arc::clone(&alive);
            slot.runtime().spawn(async move {
                std::future::pending::<()>().await;
                drop(alive);
            });
        }
        drop(pool);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
