# Drives Perl's Net::Stomp for third_party.py.
use strict;
use warnings;
use IO::Select;
use IO::Socket::SSL;
use JSON::PP;
use MIME::Base64;
use Net::Stomp;
use Net::Stomp::Frame;

$| = 1;
my $json = JSON::PP->new->utf8->canonical;
my ($stomp, $version, %messages);
my $select = IO::Select->new(\*STDIN);

sub tell_event { my ($event, %rest) = @_; print $json->encode({ event => $event, %rest }), "\n" }

sub take_frame {
    my $frame = $stomp->receive_frame;
    if (!$frame) { tell_event('closed'); exit 0 }
    my %headers = %{ $frame->headers || {} };
    if ($frame->command eq 'MESSAGE') {
        $messages{"$headers{subscription} $headers{'message-id'}"} = $frame;
        tell_event('message', headers => \%headers, body => encode_base64($frame->body, ''));
    }
    else { tell_event(lc $frame->command, headers => \%headers, body => $frame->body) }
}

my %actions = (
    connect => sub {
        my ($command) = @_;
        $version = $command->{version};
        $stomp = Net::Stomp->new({
            hostname => '127.0.0.1', port => $command->{port}, ssl => 1, logger => Log::Any->get_logger,
            ssl_options => {
                SSL_ca_file => $command->{ca}, SSL_cert_file => $command->{certificate},
                SSL_key_file => $command->{key}, SSL_verify_mode => SSL_VERIFY_PEER,
            },
        });
        my $frame = $stomp->connect({
            host => 'MAXVAPI', 'accept-version' => $version,
            'heart-beat' => join(',', @{ $command->{heart_beat} }), %{ $command->{headers} },
        });
        tell_event(lc $frame->command, headers => $frame->headers, body => $frame->body);
        $select->add($stomp->socket);
    },
    subscribe   => sub { $stomp->subscribe($_[0]{headers}) },
    unsubscribe => sub { $stomp->unsubscribe($_[0]{headers}) },
    send        => sub {
        my $body = decode_base64($_[0]{body});
        $stomp->send({ %{ $_[0]{headers} }, 'content-length' => length $body, body => $body });
    },
    # ack sends the message-id alone; what else a version requires is the caller's to add: 1.1 the subscription, 1.2 the id
    ack => sub {
        my $message = $_[0]{message};
        my %required = $version eq '1.2' ? (id => $message->{ack}) : (subscription => $message->{subscription});
        $stomp->ack({
            frame => $messages{"$message->{subscription} $message->{'message-id'}"}, %required, %{ $_[0]{headers} },
        });
    },
    # Net::Stomp's own disconnect closes without waiting for a RECEIPT
    disconnect => sub {
        $stomp->send_frame(Net::Stomp::Frame->new({ command => 'DISCONNECT', headers => { receipt => 'bye' } }));
    },
);

# What OpenSSL or Net::Stomp has read already, select does not see. Blocks while a frame is incomplete, also after a
# heart-beat: Net::Stomp has no other way to read.
sub unread { $stomp && ($stomp->{_framebuf} =~ /[^\n]/ || $stomp->socket->pending) }

my $input = '';
while (1) {
    for my $handle (unread() ? $stomp->socket : $select->can_read) {
        if ($handle != \*STDIN) { take_frame(); next }
        sysread(STDIN, $input, 65536, length $input) or exit 0;
        while ($input =~ s/^(.*)\n//) {
            my $command = $json->decode($1);
            $actions{ $command->{do} }->($command);
        }
    }
}
