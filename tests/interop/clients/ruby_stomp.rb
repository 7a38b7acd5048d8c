# Drives Ruby's stomp for third_party.py.
require 'base64'
require 'json'
require 'openssl'
require 'stomp'

$stdout.sync = true
LOCK = Mutex.new # events come from the receiving thread

def tell(event, **rest)
  LOCK.synchronize { puts JSON.generate({ event: event, **rest }) }
end

# The library loads keys as RSA only. It hands out its TLS context before it connects, so ours, on P-256, are set there.
class Credentials < Stomp::NullLogger
  def initialize(command)
    @command = command
    super()
  end

  def on_ssl_connecting(parameters)
    context = parameters[:cur_ssl].ctx
    context.verify_mode = OpenSSL::SSL::VERIFY_PEER
    context.ca_file = @command['ca']
    context.cert = OpenSSL::X509::Certificate.new(File.read(@command['certificate']))
    context.key = OpenSSL::PKey.read(File.read(@command['key']))
  end
end

def connect(command)
  headers = {
    'accept-version' => command['version'], host: 'MAXVAPI', 'heart-beat' => command['heart_beat'].join(',')
  }
  host = { host: '127.0.0.1', port: command['port'], ssl: Stomp::SSLParams.new(use_ruby_ciphers: true) }
  connection = Stomp::Connection.new(
    hosts: [host], reliable: false, logger: Credentials.new(command), connect_headers: headers.merge(command['headers'])
  )
  frame = connection.connection_frame
  tell(frame.command.downcase, headers: frame.headers, body: Base64.strict_encode64(frame.body))
  Thread.new { receive(connection) }
  connection
end

def receive(connection)
  while (frame = connection.receive)
    tell(frame.command.downcase, headers: frame.headers, body: Base64.strict_encode64(frame.body))
    break if frame.headers['receipt-id'] == 'bye'
  end
  tell('closed')
rescue StandardError => error
  tell('error', body: "#{error.class}: #{error.message}")
end

connection = nil
$stdin.each_line do |line|
  command = JSON.parse(line)
  headers = command['headers'] || {}
  case command['do']
  when 'connect' then connection = connect(command)
  when 'subscribe' then connection.subscribe(headers.delete('destination'), headers)
  when 'unsubscribe' then connection.unsubscribe(command['destination'], headers)
  when 'send' then connection.publish(headers.delete('destination'), Base64.decode64(command['body']), headers)
  when 'ack'
    message = command['message']
    if connection.protocol == Stomp::SPL_12
      connection.ack(message['ack'], headers)
    else
      connection.ack(message['message-id'], headers.merge(subscription: message['subscription']))
    end
  # its own disconnect would read the RECEIPT while the receiving thread waits for it
  when 'disconnect' then connection.send(:transmit, Stomp::CMD_DISCONNECT, { receipt: 'bye' })
  end
end
