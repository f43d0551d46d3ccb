package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// TLS names the files of mutual TLS between brokers, in PEM. They may change while
// a broker runs: every handshake uses what they hold then. Links that are up stay
// up.
type TLS struct {
	CertFile, KeyFile string // what this broker shows, as a server and as a client
	CAFile            string // who may sign the others' certificates
}

// certs is what the files hold.
type certs struct {
	files TLS
	log   *slog.Logger

	mu     sync.Mutex
	stamps [3]stamp // of the files, when they were looked at last
	pair   tls.Certificate
	ca     *x509.CertPool
}

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

func loadCerts(files TLS, log *slog.Logger) (*certs, error) {
	c := &certs{files: files, log: log}
	c.stamps = c.look()
	return c, c.load()
}

func (c *certs) look() (all [3]stamp) {
	for i, name := range []string{c.files.CertFile, c.files.KeyFile, c.files.CAFile} {
		if info, err := os.Stat(name); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

func (c *certs) load() error {
	pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("the certificate of this broker for its peers: %w", err)
	}
	pem, err := os.ReadFile(c.files.CAFile)
	if err != nil {
		return fmt.Errorf("the certificates that sign peers: %w", err)
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(pem) {
		return fmt.Errorf("the certificates that sign peers: %s holds none", c.files.CAFile)
	}
	c.pair, c.ca = pair, ca
	return nil
}

// current is what the files hold, or held when they could last be read.
func (c *certs) current() (tls.Certificate, *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.look(); now != c.stamps {
		c.stamps = now
		if err := c.load(); err != nil {
			c.log.Warn("the peers' TLS files have changed and cannot be read; those before go on", "error", err)
		} else {
			c.log.Info("the peers' TLS files were read again")
		}
	}
	return c.pair, c.ca
}

// base is what both sides want. Sessions are not resumed: that would pass by
// the certificates that sign now.
func base(pair tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		SessionTicketsDisabled: true}
}

// server is the configuration of the listener: a new one for each handshake.
func (c *certs) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pair, ca := c.current()
			config := base(pair)
			config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, ca
			return config, nil
		}}
}

// client is the configuration for one handshake with a peer at addr.
func (c *certs) client(addr string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return nil, errors.New("an address without a host cannot be compared with a certificate")
	}
	pair, ca := c.current()
	config := base(pair)
	config.RootCAs, config.ServerName = ca, host
	return config, nil
}
