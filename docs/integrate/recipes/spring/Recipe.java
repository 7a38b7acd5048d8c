// Publish lines "DESTINATION JSON" of standard input, and print each change of a glob, with Spring's STOMP client over mutual TLS.
// Usage: java -cp 'JARS/*' Recipe.java HOST PORT CA CERTIFICATE KEY GLOB
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import javax.net.ssl.SSLParameters;
import org.springframework.messaging.simp.stomp.ReactorNettyTcpStompClient;
import org.springframework.messaging.simp.stomp.StompCommand;
import org.springframework.messaging.simp.stomp.StompFrameHandler;
import org.springframework.messaging.simp.stomp.StompHeaders;
import org.springframework.messaging.simp.stomp.StompReactorNettyCodec;
import org.springframework.messaging.simp.stomp.StompSession;
import org.springframework.messaging.simp.stomp.StompSessionHandlerAdapter;
import org.springframework.messaging.tcp.reactor.ReactorNettyTcpClient;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.MimeTypeUtils;

/** One connection. Its methods are called by Spring. */
class Recipe extends StompSessionHandlerAdapter {
    // The same CONNECT would get these again, or two programs would take the session from each other for ever.
    static final Set<String> FINAL = Set.of("session taken over by a newer connection", "unknown host", "bad client-id");
    static final ThreadPoolTaskScheduler SCHEDULER = new ThreadPoolTaskScheduler();
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
            SslContext tls = SslContextBuilder.forClient() // the files are read for each connection, so that renewed ones are used
                .trustManager(new File(arguments[2])).keyManager(new File(arguments[3]), new File(arguments[4])).build();
            var transport = new ReactorNettyTcpClient<byte[]>(client -> client
                .host(arguments[0]).port(Integer.parseInt(arguments[1]))
                .secure(spec -> spec.sslContext(tls).handlerConfigurator(handler -> {
                    SSLParameters parameters = handler.engine().getSSLParameters();
                    parameters.setEndpointIdentificationAlgorithm(""); // the chain is checked, the name is not
                    handler.engine().setSSLParameters(parameters);
                })), new StompReactorNettyCodec());
            ReactorNettyTcpStompClient client = new ReactorNettyTcpStompClient(transport);
            client.setTaskScheduler(SCHEDULER);
            StompHeaders headers = new StompHeaders();
            headers.setHost("MAXVAPI");
            headers.setAcceptVersion("1.2");
            headers.setHeartbeat(new long[] {10_000, 10_000});
            headers.add("client-id", "recipe-spring");
            client.connectAsync(headers, new Recipe());
        } catch (IOException | RuntimeException error) {
            again(error.toString());
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
            if (FINAL.contains(reason)) {
                System.out.println("closed " + reason);
                Runtime.getRuntime().halt(1);
            }
            again(reason.isEmpty() ? error.toString() : reason);
        }
    }
}
