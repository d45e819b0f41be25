//! A network between two programs: latency, cuts, and connections whose other end is gone unnoticed.
//! Also used by `drill network` (benches/drill/network.rs).

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Capacity, in pieces, of one direction of a connection.
const ON_THE_WAY: usize = 256;

/// Conditions shared by all connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// How long every byte takes.
    pub(crate) latency: Duration,
    /// How much longer the news takes that a server has closed.
    pub(crate) farewell: Duration,
}

impl Weather {
    /// Only this latency, without any loss.
    pub(crate) fn slow(latency: Duration) -> Self {
        let farewell = Duration::ZERO;
        Self { latency, farewell }
    }
}

/// A TCP proxy that behaves like a network: a request to a server that has closed is answered with a
/// reset.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) port: u16,
    opened: Arc<AtomicUsize>,
    /// The number of the first connection that was not cut, and the same of those that are frozen.
    cut: watch::Sender<usize>,
    frozen: watch::Sender<usize>,
}

impl Network {
    /// Starts a network in front of `port`.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) async fn start(port: u16, weather: Weather) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let own = listener.local_addr()?.port();
        let (cut, cuts) = watch::channel(0);
        let (frozen, freezes) = watch::channel(0);
        let opened = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&opened);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let (mut cuts, freezes) = (cuts.clone(), freezes.clone());
                tokio::spawn(async move {
                    let carry = carry(client, port, weather, number, freezes);
                    tokio::select! {
                        _ = cuts.wait_for(|cut| *cut > number) => {}
                        _ = carry => {}
                    }
                });
            }
        });
        Ok(Self {
            port: own,
            opened,
            cut,
            frozen,
        })
    }

    /// The URL of `/mcp` behind it.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// Connections that were opened so far.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// Resets all connections.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(self.opened());
    }

    /// Freezes the present connections: no byte passes, and neither end notices.
    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(self.opened());
    }
}

/// State shared by both directions of a connection.
#[derive(Debug)]
struct Connection {
    weather: Weather,
    number: usize,
    freezes: watch::Receiver<usize>,
    server_closed: AtomicBool,
    client_told: Notify,
}

async fn carry(
    client: TcpStream,
    port: u16,
    weather: Weather,
    number: usize,
    freezes: watch::Receiver<usize>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    // An early end resets the connection.
    client.set_zero_linger()?;
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    server.set_nodelay(true)?;
    let ((client_in, client_out), (server_in, server_out)) =
        (client.into_split(), server.into_split());
    let connection = Arc::new(Connection {
        weather,
        number,
        freezes,
        server_closed: AtomicBool::new(false),
        client_told: Notify::new(),
    });
    let down = direction(Arc::clone(&connection), server_in, client_out, false);
    let up = direction(connection, client_in, server_out, true);
    tokio::try_join!(down, up).map(drop)
}

/// Carries everything one way: `up` to the server, or down to the client.
async fn direction(
    connection: Arc<Connection>,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    up: bool,
) -> std::io::Result<()> {
    let (sender, pieces) = mpsc::channel(ON_THE_WAY);
    let read = read(Arc::clone(&connection), from, up, sender);
    tokio::try_join!(read, write(connection, pieces, up, to)).map(drop)
}

/// A piece with when it arrives; an empty one is the end.
type Piece = (Instant, Vec<u8>);

async fn read(
    connection: Arc<Connection>,
    mut from: OwnedReadHalf,
    up: bool,
    sender: mpsc::Sender<Piece>,
) -> std::io::Result<OwnedReadHalf> {
    loop {
        let mut piece = vec![0; 16 * 1024];
        let read = from.read(&mut piece).await;
        let due = Instant::now() + connection.weather.latency;
        let Ok(length) = read else {
            sleep_until(due).await;
            return Err(ErrorKind::ConnectionReset.into());
        };
        if length == 0 && !up {
            connection.server_closed.store(true, Ordering::SeqCst);
        }
        piece.truncate(length);
        if sender.send((due, piece)).await.is_err() || length == 0 {
            return Ok(from);
        }
    }
}

async fn write(
    connection: Arc<Connection>,
    mut pieces: mpsc::Receiver<Piece>,
    up: bool,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    while let Some((due, piece)) = pieces.recv().await {
        let is_farewell = piece.is_empty() && !up;
        let farewell = connection.weather.farewell;
        sleep_until(if is_farewell { due + farewell } else { due }).await;
        if *connection.freezes.borrow() > connection.number {
            std::future::pending::<()>().await;
        }
        if is_farewell {
            to.shutdown().await?;
            connection.client_told.notify_one();
            return Ok(());
        }
        if piece.is_empty() {
            return to.shutdown().await;
        }
        if up && connection.server_closed.load(Ordering::SeqCst) {
            connection.client_told.notified().await;
            return Err(ErrorKind::ConnectionReset.into());
        }
        to.write_all(&piece).await?;
    }
    Ok(())
}
