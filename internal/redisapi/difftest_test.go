package redisapi_test

import (
	"net"
	"testing"

	"github.com/felix-go/felix/internal/redisapi/difftest"
)

func TestDifferential(t *testing.T) {
	addr := serve(t, newHandler(t, newService(t)))
	difftest.Run(t, func() net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	})
}

func TestClients(t *testing.T) {
	difftest.RunClients(t, serve(t, newHandler(t, newService(t))))
}
