// Publish lines "DESTINATION JSON" of standard input, and print each change of a glob, over mutual TLS. It needs no library.
// Usage: recipe HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]
// With a file for the position it continues by `since` in place of a durable subscription. The file has the topics too.
#nullable enable
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net.Security;
using System.Net.Sockets;
using System.Security.Authentication;
using System.Security.Cryptography.X509Certificates;
using System.Text;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;

static class Recipe
{
    // The same CONNECT would get these again, or two programs would take the session from each other for ever.
    static readonly string[] Final = { "session taken over by a newer connection", "unknown host", "bad client-id" };
    static readonly StreamReader Input = new StreamReader(Console.OpenStandardInput());
    static Task<string?> line = Task.FromResult<string?>(null); // the next line to publish; null at the end of the input
    static Resume? resume; // null with a durable subscription

    static async Task<int> Main(string[] arguments)
    {
        if (arguments.Length < 6)
        {
            Console.Error.WriteLine("usage: recipe HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]");
            return 2;
        }
        if (arguments.Length > 6) resume = new Resume(arguments[6]);
        line = Input.ReadLineAsync();
        for (int failures = 0; ; failures++)
        {
            try
            {
                using var connection = await Connection.Open(arguments);
                Console.WriteLine("connected");
                failures = 0;
                await Run(connection, arguments[5]);
                return 0;
            }
            catch (Exception error) when (
                error is IOException || error is SocketException || error is AuthenticationException || error is OperationCanceledException)
            {
                string reason = error is OperationCanceledException ? "no answer in time" : error.Message;
                if (Final.Contains(reason))
                {
                    Console.WriteLine($"closed {reason}");
                    return 1;
                }
                Console.WriteLine($"lost {reason}");
            }
            await Task.Delay(TimeSpan.FromSeconds(Random.Shared.NextDouble() * Math.Min(30, 0.5 * Math.Pow(2, failures)))); // full jitter
        }
    }

    /// <summary>Serves one connection. It returns after DISCONNECT.</summary>
    static async Task Run(Connection connection, string glob)
    {
        var headers = resume?.Begin() ?? new Dictionary<string, string> { ["durable"] = "true" };
        await connection.Send("SUBSCRIBE", new Dictionary<string, string>(headers)
        {
            ["id"] = "all", ["destination"] = glob, ["ack"] = "client", ["accept-format"] = "json",
        });
        string? sent = null; // destination of the SEND without a RECEIPT; the next line waits for it
        try
        {
            Task<Frame> next = connection.Read();
            for (Task beat = connection.Pause(); ;)
            {
                Task first = sent == null ? await Task.WhenAny(beat, line, next) : await Task.WhenAny(beat, next);
                if (first == beat)
                {
                    await connection.Beat();
                    beat = connection.Pause();
                }
                else if (first == next)
                {
                    Frame frame = await next;
                    if (frame.Command == "ERROR") throw new IOException(frame["message"]);
                    if (frame.Command == "MESSAGE") await Receive(connection, frame);
                    if (frame.Command == "RECEIPT")
                    {
                        if (frame["receipt-id"] == "end") return;
                        Console.WriteLine($"{frame["disposition"]} {sent} {frame["result"]}");
                        sent = null;
                    }
                    next = connection.Read();
                }
                else if (await line is string text)
                {
                    string[] parts = text.Split(' ', 2);
                    sent = parts[0];
                    line = Input.ReadLineAsync();
                    await connection.Send("SEND", new Dictionary<string, string>
                    {
                        ["destination"] = sent, ["content-type"] = "application/json", ["receipt"] = "send",
                    }, parts.Length > 1 ? parts[1] : "");
                }
                else
                {
                    sent = ""; // no other line comes
                    await connection.Send("DISCONNECT", new Dictionary<string, string> { ["receipt"] = "end" });
                }
            }
        }
        finally
        {
            if (!string.IsNullOrEmpty(sent)) Console.WriteLine($"unknown {sent}"); // it may have been accepted
        }
    }

    static async Task Receive(Connection connection, Frame frame)
    {
        if (frame["ack"] == "") // a marker or a notice
        {
            resume?.Notice(frame);
            return;
        }
        Show(frame["destination"], frame.Body);
        resume?.Took(frame["destination"], frame.Body != "");
        await connection.Send("ACK", new Dictionary<string, string> { ["id"] = frame["ack"] }); // only then comes its next value
    }

    /// <summary>Prints a change; without body the topic is gone. Put the work of your program here.</summary>
    public static void Show(string topic, string body) => Console.WriteLine(body == "" ? $"deleted {topic}" : $"value {topic} {body}");
}

/// <summary>The state from which the program continues by `since`. A program that stores values stores the position with them.</summary>
class Resume
{
    readonly string file;
    readonly SortedSet<string> held; // topics of which the program has a value
    string position;
    HashSet<string>? seen; // topics that came since SUBSCRIBE; null after the marker `complete`

    public Resume(string file)
    {
        string[] lines = File.Exists(file) ? File.ReadAllText(file).Split('\n') : new[] { "" };
        this.file = file;
        position = lines[0];
        held = new SortedSet<string>(lines.Skip(1), StringComparer.Ordinal);
    }

    /// <summary>Returns headers for the next SUBSCRIBE.</summary>
    public Dictionary<string, string> Begin()
    {
        seen = new HashSet<string>();
        var headers = new Dictionary<string, string> { ["markers"] = "true", ["eager"] = "true" };
        if (position != "") headers["since"] = position;
        return headers;
    }

    /// <summary>Records a change that the program is done with.</summary>
    public void Took(string topic, bool hasValue)
    {
        seen?.Add(topic);
        if (hasValue) held.Add(topic);
        else held.Remove(topic);
    }

    /// <summary>Handles a MESSAGE that has no `ack`: a marker, or a notice about a topic.</summary>
    public void Notice(Frame frame)
    {
        string topic = frame["destination"], kind = frame["kind"];
        if (topic != "$marker")
        {
            if (kind == "left") Drop(topic); // the right to receive it is gone
            else Console.WriteLine($"{kind} {topic} {frame["reason"]}"); // stale or fresh: the value stays
        }
        else if (kind == "complete")
        {
            // Without a position that can be used, all values came: the program drops the topics that were not among them.
            if (position == "" || frame["result"] == "since-unavailable")
                foreach (string one in held.Except(seen ?? new HashSet<string>()).ToList()) Drop(one);
            seen = null;
        }
        if (frame["position"] == "" || seen != null) return;
        position = frame["position"]; // all that came before is handled
        File.WriteAllText(file + ".new", string.Join('\n', held.Prepend(position)));
        File.Move(file + ".new", file, overwrite: true); // so that a crash leaves the old file or the new one
        Console.WriteLine($"position {position}");
    }

    void Drop(string topic)
    {
        held.Remove(topic);
        Recipe.Show(topic, "");
    }
}

/// <summary>A frame of STOMP.</summary>
class Frame
{
    public string Command = "", Body = "";
    public readonly Dictionary<string, string> Headers = new Dictionary<string, string>();

    /// <summary>A header, or the empty text.</summary>
    public string this[string name] => Headers.GetValueOrDefault(name, "");
}

/// <summary>STOMP 1.2 over mutual TLS. One task writes.</summary>
sealed class Connection : IDisposable
{
    static readonly TimeSpan Interval = TimeSpan.FromSeconds(10); // of heart-beats, in both directions
    readonly TcpClient tcp = new TcpClient { NoDelay = true };
    readonly byte[] buffer = new byte[65536];
    Stream stream = Stream.Null;
    int at, end; // of what was read and not yet used in `buffer`

    /// <summary>Connects. The files are read for each connection, so that a renewed certificate is used.</summary>
    public static async Task<Connection> Open(string[] arguments)
    {
        var connection = new Connection();
        try
        {
            using var limit = new CancellationTokenSource(TimeSpan.FromSeconds(15));
            await connection.tcp.ConnectAsync(arguments[0], int.Parse(arguments[1]), limit.Token);
            var tls = new SslStream(connection.tcp.GetStream());
            await tls.AuthenticateAsClientAsync(Options(arguments[0], arguments[2], arguments[3], arguments[4]), limit.Token);
            connection.stream = tls;
            await connection.Send("CONNECT", new Dictionary<string, string>
            {
                ["accept-version"] = "1.2", ["host"] = "MAXVAPI", ["heart-beat"] = "10000,10000", ["client-id"] = "recipe-dotnet",
            });
            Frame answer = await connection.Read();
            return answer.Command == "CONNECTED" ? connection : throw new IOException(answer["message"]);
        }
        catch
        {
            connection.Dispose();
            throw;
        }
    }

    /// <summary>Trusts by chain, not by name.</summary>
    static SslClientAuthenticationOptions Options(string host, string ca, string certificate, string key)
    {
        var policy = new X509ChainPolicy { TrustMode = X509ChainTrustMode.CustomRootTrust, RevocationMode = X509RevocationMode.NoCheck };
        policy.CustomTrustStore.ImportFromPemFile(ca);
        var chain = new X509Certificate2Collection();
        chain.ImportFromPemFile(certificate);
        return new SslClientAuthenticationOptions
        {
            TargetHost = host,
            CertificateChainPolicy = policy,
            ClientCertificateContext =
                SslStreamCertificateContext.Create(X509Certificate2.CreateFromPemFile(certificate, key), chain, offline: true),
            RemoteCertificateValidationCallback = (sender, theirs, built, errors) =>
                (errors & ~SslPolicyErrors.RemoteCertificateNameMismatch) == 0,
        };
    }

    public Task Pause() => Task.Delay(Interval / 2);

    public Task Beat() => Write(new[] { (byte)'\n' });

    public Task Send(string command, Dictionary<string, string> headers, string body = "")
    {
        var text = new StringBuilder(command).Append('\n');
        foreach (var (name, value) in headers) text.Append($"{Escape(name)}:{Escape(value)}\n");
        if (body != "") text.Append($"content-length:{Encoding.UTF8.GetByteCount(body)}\n");
        return Write(Encoding.UTF8.GetBytes(text.Append($"\n{body}\0").ToString()));
    }

    /// <summary>Returns the next frame. It fails if nothing comes for two intervals of heart-beats.</summary>
    public async Task<Frame> Read()
    {
        var frame = new Frame();
        while (frame.Command == "") frame.Command = await ReadLine(); // an empty line is a heart-beat
        for (string line = await ReadLine(); line != ""; line = await ReadLine())
        {
            string[] parts = line.Split(':', 2);
            frame.Headers.TryAdd(Unescape(parts[0]), Unescape(parts[^1])); // the first of equal names counts
        }
        var body = new List<byte>();
        int length = frame["content-length"] == "" ? -1 : int.Parse(frame["content-length"]);
        for (byte one = await ReadByte(); body.Count < length || one != 0; one = await ReadByte()) body.Add(one);
        frame.Body = Encoding.UTF8.GetString(body.ToArray());
        return frame;
    }

    public void Dispose()
    {
        stream.Dispose();
        tcp.Dispose();
    }

    async Task<string> ReadLine()
    {
        var line = new List<byte>();
        for (byte one = await ReadByte(); one != '\n'; one = await ReadByte()) line.Add(one);
        return Encoding.UTF8.GetString(line.ToArray()).TrimEnd('\r');
    }

    async ValueTask<byte> ReadByte()
    {
        if (at == end)
        {
            using var limit = new CancellationTokenSource(Interval * 2);
            end = await stream.ReadAsync(buffer, 0, buffer.Length, limit.Token);
            at = 0;
            if (end == 0) throw new IOException("connection lost");
        }
        return buffer[at++];
    }

    async Task Write(byte[] bytes)
    {
        using var limit = new CancellationTokenSource(Interval * 2);
        await stream.WriteAsync(bytes, 0, bytes.Length, limit.Token);
    }

    static string Escape(string text) =>
        text.Replace("\\", "\\\\").Replace("\r", "\\r").Replace("\n", "\\n").Replace(":", "\\c");

    static string Unescape(string text) => Regex.Replace(text, @"\\(.)", found => found.Value switch
    {
        "\\r" => "\r", "\\n" => "\n", "\\c" => ":", _ => found.Groups[1].Value,
    });
}
