// Drives Spring's WebSocketStompClient for third_party.py.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Type;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.glassfish.tyrus.client.ClientManager;
import org.glassfish.tyrus.client.ClientProperties;
import org.glassfish.tyrus.client.SslEngineConfigurator;
import org.glassfish.tyrus.container.jdk.client.JdkClientContainer;
import org.springframework.messaging.MessageDeliveryException;
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

class SpringWebSocket {
    static final ObjectMapper JSON = new ObjectMapper();
    static StompSession session;
    static String version;

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) return; // --probe: it was compiled
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            perform(JSON.readTree(line));
        }
        System.exit(0);
    }

    static void perform(JsonNode command) throws Exception {
        StompHeaders headers = new StompHeaders();
        command.path("headers").fields().forEachRemaining(field -> headers.add(field.getKey(), field.getValue().asText()));
        switch (command.get("do").asText()) {
            case "connect" -> connect(command, headers);
            case "subscribe" -> watch(session.subscribe(headers, new Messages()));
            case "send" -> {
                headers.setContentType(MimeTypeUtils.parseMimeType(headers.containsKey("content-type")
                    ? headers.getFirst("content-type") : "application/octet-stream"));
                watch(session.send(headers, Base64.getDecoder().decode(command.get("body").asText())));
            }
            case "ack" -> {
                JsonNode message = command.get("message");
                if (version.equals("1.2")) {
                    headers.setId(message.get("ack").asText());
                } else {
                    headers.setSubscription(message.get("subscription").asText());
                    headers.setMessageId(message.get("message-id").asText());
                }
                watch(session.acknowledge(headers, true));
            }
            case "disconnect" -> {
                try {
                    session.disconnect();
                } catch (MessageDeliveryException error) {
                    // the container has already ended, as the gateway has closed the connection
                }
                tell("closed", Map.of(), new byte[0]);
            }
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    static void connect(JsonNode command, StompHeaders headers) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (var file = Files.newInputStream(Path.of(command.get("ca").asText()))) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, trust.getTrustManagers(), null);
        ClientManager container = ClientManager.createClient(JdkClientContainer.class.getName());
        container.getProperties().put(ClientProperties.SSL_ENGINE_CONFIGURATOR, new SslEngineConfigurator(tls));

        ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
        scheduler.initialize();
        WebSocketStompClient client = new WebSocketStompClient(new StandardWebSocketClient(container));
        client.setTaskScheduler(scheduler); // for RECEIPTs and heart-beats
        client.setInboundMessageSizeLimit(1 << 20);
        version = command.get("version").asText();
        headers.setHost("MAXVAPI");
        headers.setAcceptVersion(version);
        headers.setHeartbeat(new long[] {command.get("heart_beat").get(0).asLong(), command.get("heart_beat").get(1).asLong()});
        WebSocketHttpHeaders upgrade = new WebSocketHttpHeaders();
        upgrade.setSecWebSocketProtocol(List.of("v12.stomp", "v11.stomp")); // Spring sends none by itself
        upgrade.setOrigin("https://interop.example"); // Tyrus sends its host otherwise, which no gateway has in `origins`
        client.connectAsync(URI.create(command.get("url").asText()), upgrade, headers, new Events());
    }

    static void watch(StompSession.Receiptable sent) {
        sent.addReceiptTask(headers -> tell("receipt", headers.toSingleValueMap(), new byte[0]));
    }

    static synchronized void tell(String event, Map<String, String> headers, byte[] body) {
        try {
            String encoded = Base64.getEncoder().encodeToString(body);
            System.out.println(JSON.writeValueAsString(Map.of("event", event, "headers", headers, "body", encoded)));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    static class Messages implements StompFrameHandler {
        public Type getPayloadType(StompHeaders headers) {
            return byte[].class;
        }

        public void handleFrame(StompHeaders headers, Object payload) {
            tell("message", headers.toSingleValueMap(), payload == null ? new byte[0] : (byte[]) payload);
        }
    }

    static class Events extends StompSessionHandlerAdapter {
        public void afterConnected(StompSession connected, StompHeaders headers) {
            session = connected;
            tell("connected", headers.toSingleValueMap(), new byte[0]);
        }

        public Type getPayloadType(StompHeaders headers) {
            return byte[].class;
        }

        public void handleFrame(StompHeaders headers, Object payload) { // an ERROR
            tell("error", headers.toSingleValueMap(), payload == null ? new byte[0] : (byte[]) payload);
        }

        public void handleException(
            StompSession failed, StompCommand command, StompHeaders headers, byte[] payload, Throwable error) {
            error.printStackTrace();
        }

        public void handleTransportError(StompSession lost, Throwable error) {
            tell("closed", Map.of("reason", String.valueOf(error)), new byte[0]);
        }
    }
}
