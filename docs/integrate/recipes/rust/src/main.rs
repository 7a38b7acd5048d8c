//! Publish lines `DESTINATION JSON` of standard input, and print each change of a glob, with async-stomp over mutual TLS.
//! Usage: recipe HOST PORT CA CERTIFICATE KEY GLOB

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use async_stomp::client::{ClientCodec, Connector, Heartbeat, Subscriber};
use async_stomp::{AckMode, FromServer, Message, ToServer};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::net::TcpStream;
use tokio::time::{interval, sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_util::codec::{Decoder, Framed};

type Connection = Framed<Pin<Box<TimeoutStream<TlsStream<TcpStream>>>>, ClientCodec>;

// The same CONNECT would get these again, or two programs would take the session from each other for ever.
const FINAL: [&str; 3] = ["session taken over by a newer connection", "unknown host", "bad client-id"];
const BEAT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut failures = 0;
    loop {
        let error = match connect(&arguments).await {
            Ok(connection) => {
                println!("connected");
                failures = 0;
                match run(connection, &arguments[5], &mut lines).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        if FINAL.contains(&error.to_string().as_str()) {
            println!("closed {error}");
            std::process::exit(1);
        }
        println!("lost {error}");
        let limit = (0.5 * 2f64.powi(failures)).min(30.0);
        sleep(Duration::from_secs_f64(rand::random_range(0.0..limit))).await; // full jitter
        failures += 1;
    }
}

/// Connects as the library's own `Connector` does, which can neither show a certificate nor trust an authority of one's own.
async fn connect(arguments: &[String]) -> Result<Connection> {
    let [host, port, ca, certificate, key, _] = arguments else { bail!("usage: recipe HOST PORT CA CERTIFICATE KEY GLOB") };
    let tls = TlsConnector::from(Arc::new(tls_config(ca, certificate, key)?));
    let opening = async {
        let tcp = TcpStream::connect((host.as_str(), port.parse()?)).await?;
        let mut stream = TimeoutStream::new(tls.connect(ServerName::try_from(host.clone())?, tcp).await?);
        stream.set_read_timeout(Some(BEAT * 2)); // the gateway sends heart-beats; the codec hides them
        let mut connection = ClientCodec::new().framed(Box::pin(stream));
        let connector = Connector::builder().server("unused").virtualhost("MAXVAPI").heartbeat(10_000, 10_000);
        connection.send(connector.headers(vec![header("client-id", "recipe-rust")]).msg()).await?;
        match connection.next().await.ok_or(anyhow!("connection lost"))??.content {
            FromServer::Connected { .. } => Ok(connection),
            FromServer::Error { message, .. } => bail!(message.unwrap_or_default()),
            other => bail!("unexpected answer: {other:?}"),
        }
    };
    timeout(Duration::from_secs(15), opening).await?
}

fn header(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

/// Serves one connection. Returns Ok after DISCONNECT.
async fn run(mut connection: Connection, glob: &str, lines: &mut Lines<BufReader<Stdin>>) -> Result<()> {
    let options = vec![header("durable", "true"), header("accept-format", "json")];
    let subscribe = Subscriber::builder().destination(glob).id("all").ack(AckMode::Client).headers(options);
    connection.send(subscribe.subscribe()).await?;
    let mut sent = HashMap::new(); // destinations of SENDs without a RECEIPT
    let outcome = serve(&mut connection, lines, &mut sent).await;
    for topic in sent.values() {
        println!("unknown {topic}"); // it may have been accepted
    }
    outcome
}

async fn serve(
    connection: &mut Connection,
    lines: &mut Lines<BufReader<Stdin>>,
    sent: &mut HashMap<String, String>,
) -> Result<()> {
    let mut beats = interval(BEAT / 2);
    loop {
        tokio::select! {
            _ = beats.tick() => connection.send(Heartbeat).await?,
            line = lines.next_line() => {
                let Some(line) = line? else {
                    connection.send(Message::from(ToServer::Disconnect { receipt: Some("bye".into()) })).await?;
                    while let Some(Ok(_)) = connection.next().await {} // until the gateway closes
                    return Ok(());
                };
                let (destination, body) = line.split_once(' ').unwrap_or((&line, ""));
                let receipt = rand::random::<u64>().to_string();
                sent.insert(receipt.clone(), destination.into());
                connection.send(Message::from(ToServer::Send {
                    destination: destination.into(),
                    transaction: None,
                    headers: Some(vec![header("receipt", &receipt), header("content-type", "application/json")]),
                    body: Some(body.into()),
                })).await?;
            }
            message = connection.next() => {
                let message = message.ok_or(anyhow!("connection lost"))??;
                let find = |name: &str| {
                    let found = message.extra_headers.iter().find(|(one, _)| one == name.as_bytes());
                    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
                };
                match message.content {
                    FromServer::Message { ref destination, ref ack, ref body, .. } => {
                        show(destination, body.as_deref().unwrap_or_default());
                        let id = ack.clone().unwrap_or_default();
                        connection.send(Message::from(ToServer::Ack { id, transaction: None })).await?;
                    }
                    FromServer::Receipt { ref receipt_id } => {
                        if let Some(topic) = sent.remove(receipt_id) {
                            println!("{} {topic} {}", find("disposition"), find("result"));
                        }
                    }
                    FromServer::Error { message, .. } => bail!(message.unwrap_or_default()),
                    FromServer::Connected { .. } => {}
                }
            }
        }
    }
}

/// Prints a change. Put the work of your program here.
fn show(topic: &str, body: &[u8]) {
    match body {
        b"" => println!("deleted {topic}"),
        _ => println!("value {topic} {}", String::from_utf8_lossy(body)),
    }
}

fn tls_config(ca: &str, certificate: &str, key: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_file_iter(ca)? {
        roots.add(one?)?;
    }
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let verifier = ChainOnly(WebPkiServerVerifier::builder(Arc::new(roots)).build()?);
    Ok(ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?)
}

/// Trusts by chain, not by name. The verifier within checks the name last.
#[derive(Debug)]
struct ChainOnly(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ChainOnly {
    fn verify_server_cert(
        &self,
        end: &CertificateDer,
        chain: &[CertificateDer],
        name: &ServerName,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(end, chain, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
