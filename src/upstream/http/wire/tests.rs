use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::{HttpCarrier, Transport};

fn wire(listener: &TcpListener) -> HttpWire {
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let carrier = HttpCarrier {
        url: url.parse().unwrap(),
        transport: Transport::Streamable,
        headers: Vec::new(),
        ca_file: None,
        proxy: None,
    };
    let bounds = Bounds {
        message: 1 << 20,
        event: 1 << 20,
        depth: 64,
    };
    HttpWire::new("up".into(), HttpClient::new(&carrier).unwrap(), bounds)
}

/// Reads one request and answers it with a stream of one notice and the reply.
async fn answer(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
    }
    let events = concat!(
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n",
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
    );
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n0\r\n\r\n",
        events.len()
    );
    stream.write_all(response.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_reply_on_a_stream_leaves_its_connection_to_the_next_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = wire(&listener);
    let ask = async {
        let take = &mut |message: Message| message.id().is_some().then_some(message);
        let body = || Bytes::from_static(b"{}");
        wire.request(body(), None, take).await.unwrap();
        wire.exchange(body(), MessageHeaders::default(), take)
            .await
            .unwrap();
        wire.request(body(), None, take).await.unwrap();
    };
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        for _ in 0..3 {
            answer(&mut stream).await;
        }
    };
    tokio::join!(ask, play);
}
