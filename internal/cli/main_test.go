package cli_test

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/cli/clitest"
	"github.com/felix-go/felix/internal/httpapi"
	"github.com/felix-go/felix/internal/model"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// TestBroker runs the scripts that any broker must pass, here the model.
func TestBroker(t *testing.T) {
	service := model.New(func() int64 { return time.Now().UnixMilli() })
	clitest.Run(t, clitest.BrokerScripts(), serve(t, service))
}

// TestCluster runs the scripts of a cluster of three brokers, here the model of
// one.
func TestCluster(t *testing.T) {
	service := model.New(func() int64 { return time.Now().UnixMilli() })
	clitest.Run(t, "testdata/cluster", serveCluster(t, service, model.NewCluster(service, 3)))
}

// TestLocal runs the scripts that need no broker.
func TestLocal(t *testing.T) { clitest.Run(t, "testdata/local", "") }

// serve starts the HTTP door before a service and answers its address.
func serve(t *testing.T, service felix.Service) string {
	t.Helper()
	return serveCluster(t, service, nil)
}

func serveCluster(t *testing.T, service felix.Service, cluster felix.Cluster) string {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	server := httpapi.NewServer(httpapi.Handler(service, httpapi.Options{Log: log, Cluster: cluster}), log)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr().String()
}
