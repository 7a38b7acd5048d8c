// Publish lines "DESTINATION JSON" of standard input, and print each change of a glob, with Spring's STOMP client over WebSocket.
// Usage: java -cp 'JARS/*' Recipe.java HOST PORT CA CERTIFICATE KEY GLOB
// It shows a certificate to the admin listener. With a ticket instead, set `login` and `passcode` in CONNECT and leave out `durable`.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Type;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.glassfish.tyrus.client.ClientManager;
import org.glassfish.tyrus.client.ClientProperties;
import org.glassfish.tyrus.client.SslEngineConfigurator;
import org.glassfish.tyrus.container.jdk.client.JdkClientContainer;
import org.springframework.messaging.simp.stomp.StompCommand;
import org.springframework.messaging.simp.stomp.StompFrameHandler;
import org.springframework.messaging.simp.stomp.StompHeaders;
import org.springframework.messaging.simp.stomp.StompSession;
import org.springframework.messaging.simp.stomp.StompSessionHandlerAdapter;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.MimeTypeUtils;
import org.springframework.web.socket.WebSocketHttpHeaders;
import org.springframework.web.socket.client.standard.StandardWebSocketClient;
import org.springframework.web.socket.messaging.WebSocketStompClient;

/** One connection. Its methods are called by Spring. */
class Recipe extends StompSessionHandlerAdapter {
    // The same CONNECT would get these again, or two programs would take the session from each other for ever.
    static final Set<String> FINAL = Set.of("session taken over by a newer connection", "unknown host", "bad client-id");
    static final ThreadPoolTaskScheduler SCHEDULER = new ThreadPoolTaskScheduler();
    // Not the container of Tyrus with Grizzly: when the gateway closes, that one may drop the ERROR that came just before.
    static final ClientManager CONTAINER = ClientManager.createClient(JdkClientContainer.class.getName());
    static final Queue<String> UNSENT = new ArrayDeque<>();
    static String[] arguments;
    static Recipe connected; // null while there is no connection
    static int failures;

    final Map<String, String> sent = new ConcurrentHashMap<>(); // destinations of SENDs without a RECEIPT
    StompSession session;
    String reason = "";

    public static void main(String[] all) throws Exception {
        arguments = all;
        SCHEDULER.setDaemon(true);
        SCHEDULER.initialize(); // for heart-beats and RECEIPTs
        connect();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            synchronized (Recipe.class) {
                UNSENT.add(line);
                if (connected != null) connected.publish();
            }
        }
        synchronized (Recipe.class) {
            if (connected != null) connected.session.disconnect();
            System.exit(0);
        }
    }

    static void connect() {
        try {
            SslEngineConfigurator tls = new SslEngineConfigurator(tls()); // for each connection, so that renewed files are used
            tls.setHostVerificationEnabled(false); // the chain is checked, the name is not
            CONTAINER.getProperties().put(ClientProperties.SSL_ENGINE_CONFIGURATOR, tls);
            WebSocketStompClient client = new WebSocketStompClient(new StandardWebSocketClient(CONTAINER));
            client.setTaskScheduler(SCHEDULER);
            client.setInboundMessageSizeLimit(1 << 20); // bytes; 64 KiB by default
            String address = arguments[0] + ":" + arguments[1];
            WebSocketHttpHeaders upgrade = new WebSocketHttpHeaders();
            upgrade.setSecWebSocketProtocol(List.of("v12.stomp")); // Spring sends none by itself
            upgrade.setOrigin("https://" + address); // Tyrus sends another one by itself, which the gateway refuses
            StompHeaders headers = new StompHeaders();
            headers.setHost("MAXVAPI");
            headers.setAcceptVersion("1.2");
            headers.setHeartbeat(new long[] {10_000, 10_000});
            headers.add("client-id", "recipe-spring-websocket");
            client.connectAsync(URI.create("wss://" + address + "/stomp"), upgrade, headers, new Recipe());
        } catch (IOException | GeneralSecurityException | RuntimeException error) {
            again(error.toString());
        }
    }

    static SSLContext tls() throws IOException, GeneralSecurityException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        for (Certificate one : certificates(arguments[2])) trusted.setCertificateEntry("ca-" + trusted.size(), one);
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        Certificate[] chain = certificates(arguments[3]);
        String pem = Files.readString(Path.of(arguments[4])).replaceAll("-----[^-]*-----|\\s", "");
        KeyFactory keys = KeyFactory.getInstance(chain[0].getPublicKey().getAlgorithm());
        PrivateKey key = keys.generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem)));
        KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
        own.load(null, null);
        own.setKeyEntry("own", key, new char[0], chain);
        KeyManagerFactory shown = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        shown.init(own, new char[0]);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(shown.getKeyManagers(), trust.getTrustManagers(), null);
        return tls;
    }

    static Certificate[] certificates(String file) throws IOException, GeneralSecurityException {
        try (InputStream input = Files.newInputStream(Path.of(file))) {
            return CertificateFactory.getInstance("X.509").generateCertificates(input).toArray(new Certificate[0]);
        }
    }

    static void again(String reason) {
        System.out.println("lost " + reason);
        long limitMs = Math.min(30_000, 500L << Math.min(failures++, 6)); // full jitter
        SCHEDULER.schedule(Recipe::connect, Instant.now().plusMillis(ThreadLocalRandom.current().nextLong(limitMs)));
    }

    @Override
    public void afterConnected(StompSession session, StompHeaders headers) {
        synchronized (Recipe.class) {
            System.out.println("connected");
            this.session = session;
            failures = 0;
            connected = this;
            StompHeaders wanted = new StompHeaders();
            wanted.setDestination(arguments[5]);
            wanted.setId("all");
            wanted.setAck("client");
            wanted.add("durable", "true");
            wanted.add("accept-format", "json");
            session.subscribe(wanted, new StompFrameHandler() {
                public Type getPayloadType(StompHeaders headers) {
                    return byte[].class;
                }

                public void handleFrame(StompHeaders headers, Object payload) {
                    show(headers.getDestination(), payload == null ? "" : new String((byte[]) payload, StandardCharsets.UTF_8));
                    StompHeaders done = new StompHeaders();
                    done.setId(headers.getFirst("ack")); // `acknowledge` of a message-id is an ACK of STOMP 1.1
                    session.acknowledge(done, true); // only then comes the next value of this topic
                }
            });
            publish();
        }
    }

    /** Put the work of your program here. */
    static void show(String topic, String body) {
        System.out.println(body.isEmpty() ? "deleted " + topic : "value " + topic + " " + body);
    }

    void publish() {
        for (String line = UNSENT.poll(); line != null; line = UNSENT.poll()) {
            String[] parts = line.split(" ", 2);
            StompHeaders headers = new StompHeaders();
            headers.setDestination(parts[0]);
            headers.setContentType(MimeTypeUtils.APPLICATION_JSON);
            headers.setReceipt(Long.toString(ThreadLocalRandom.current().nextLong()));
            sent.put(headers.getReceipt(), parts[0]);
            byte[] body = parts.length < 2 ? new byte[0] : parts[1].getBytes(StandardCharsets.UTF_8);
            session.send(headers, body).addReceiptTask(receipt -> {
                String result = receipt.getFirst("result");
                String topic = sent.remove(receipt.getReceiptId());
                System.out.println(receipt.getFirst("disposition") + " " + topic + " " + (result == null ? "" : result));
            });
        }
    }

    @Override
    public Type getPayloadType(StompHeaders headers) {
        return byte[].class;
    }

    @Override
    public void handleFrame(StompHeaders headers, Object payload) { // an ERROR
        reason = headers.getFirst("message");
        if (FINAL.contains(reason)) {
            System.out.println("closed " + reason);
            Runtime.getRuntime().halt(1);
        }
    }

    @Override
    public void handleException(StompSession failed, StompCommand command, StompHeaders headers, byte[] payload, Throwable error) {
        error.printStackTrace(); // a bug in one of the methods above
    }

    @Override
    public void handleTransportError(StompSession lost, Throwable error) { // also if no connection could be made
        synchronized (Recipe.class) {
            connected = null;
            for (String topic : sent.values()) System.out.println("unknown " + topic); // it may have been accepted
            sent.clear();
            again(reason.isEmpty() ? error.toString() : reason);
        }
    }
}
