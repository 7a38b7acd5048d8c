module recipe

go 1.24

require github.com/go-stomp/stomp/v3 v3.1.5
