package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key = a.newKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

// files writes a certificate for host into dir, over what is there, and says
// where.
func (a *authority) files(dir, host string) TLS {
	a.t.Helper()
	a.made++
	key := a.newKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(1 + a.made), Subject: pkix.Name{CommonName: "broker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	f := TLS{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), CAFile: filepath.Join(dir, "ca.pem")}
	a.write(f.CertFile, "CERTIFICATE", der)
	a.write(f.KeyFile, "PRIVATE KEY", private)
	a.write(f.CAFile, "CERTIFICATE", a.cert.Raw)
	return f
}

// write replaces a file. Its time is made to differ: the clock of a file system
// may stand still for milliseconds.
func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	at := time.Now().Add(time.Duration(a.made) * time.Second)
	if err := os.Chtimes(name, at, at); err != nil {
		a.t.Fatal(err)
	}
}

func withTLS(f TLS) func(*Options) { return func(o *Options) { o.TLS = &f } }

func TestMutualTLS(t *testing.T) {
	ca, other := newAuthority(t, "ours"), newAuthority(t, "another")
	a := newBroker(t, 1, withTLS(ca.files(t.TempDir(), "127.0.0.1")))
	b := newBroker(t, 2, withTLS(ca.files(t.TempDir(), "127.0.0.1")))
	meet(t, a, b)
	adds := newAdder()
	b.forward = adds.forward
	if c := forwarded(t, a, 2, addCall(1, a.net.o.Mono()+time.Minute, nil)); c.Outcome != Answered || c.Batch.Replies[0].Int != 2 {
		t.Errorf("a call over TLS: %+v", c)
	}
	ctx, cancel := timeout(patience)
	defer cancel()
	h, next := snapshotOf([][]byte{[]byte("x")})
	if err := a.net.SendSnapshot(ctx, 2, h, next); err != nil {
		t.Errorf("a snapshot over TLS: %v", err)
	}
	if _, err := a.net.Caller(b.addr).Probe(ctx); err != nil {
		t.Errorf("Probe over TLS: %v", err)
	}

	probe := func(from *broker, to *broker) error {
		_, err := from.net.Caller(to.addr).Probe(ctx)
		return err
	}
	stranger := newBroker(t, 3, withTLS(other.files(t.TempDir(), "127.0.0.1")))
	plain := newBroker(t, 4, nil)
	misnamed := newBroker(t, 5, withTLS(ca.files(t.TempDir(), "elsewhere.example")))
	for name, v := range map[string]struct{ from, to *broker }{
		"a stranger asks":                     {stranger, b},
		"a stranger is asked":                 {a, stranger},
		"one without TLS asks":                {plain, b},
		"one without TLS is asked":            {a, plain},
		"a certificate of another host shown": {a, misnamed},
	} {
		if err := probe(v.from, v.to); felix.AsError(err).Code != felix.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A stranger that trusts us is refused all the same: by us.
	trusting := other.files(t.TempDir(), "127.0.0.1")
	trusting.CAFile = ca.files(t.TempDir(), "127.0.0.1").CAFile
	if err := probe(newBroker(t, 3, withTLS(trusting)), b); felix.AsError(err).Code != felix.Unavailable {
		t.Errorf("a stranger that trusts us: %v", err)
	}
	noCertificate := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	conn, err := tls.Dial("tcp", b.addr, noCertificate)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
}

// Files that change are used by the next handshake, in both roles; links that are
// up stay up; what cannot be read changes nothing.
func TestReload(t *testing.T) {
	before, after := newAuthority(t, "before"), newAuthority(t, "after")
	after.made = 10
	dirA, dirB := t.TempDir(), t.TempDir()
	wire := newWire()
	files := before.files(dirA, "127.0.0.1")
	a := newBroker(t, 1, func(o *Options) { o.TLS, o.Dial = &files, wire.dial })
	b := newBroker(t, 2, withTLS(before.files(dirB, "127.0.0.1")))
	meet(t, a, b)
	ctx, cancel := timeout(patience)
	defer cancel()
	probe := func(from, to *broker) error {
		_, err := from.net.Caller(to.addr).Probe(ctx)
		return err
	}
	if err := os.WriteFile(filepath.Join(dirB, "cert.pem"), []byte("half written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probe(a, b); err != nil {
		t.Errorf("with a file that cannot be read: %v", err)
	}
	after.files(dirB, "127.0.0.1")
	if err := probe(a, b); err == nil {
		t.Error("the one asked shows its old certificate")
	}
	if err := probe(b, a); err == nil {
		t.Error("the one that asks shows its old certificate")
	}
	if !a.net.Links()[0].Up || !b.net.Links()[0].Up {
		t.Error("new files have ended links")
	}
	after.files(dirA, "127.0.0.1")
	if err := probe(a, b); err != nil {
		t.Errorf("with new files at both: %v", err)
	}
	if err := probe(b, a); err != nil {
		t.Errorf("with new files at both: %v", err)
	}
	wire.cut()
	eventually(t, "the link is up again", func() (ok bool) {
		a.locked(func() { ok = len(a.ups[2]) == 3 })
		return ok
	})
}

func TestTLSFilesAreNeeded(t *testing.T) {
	good := newAuthority(t, "ours").files(t.TempDir(), "127.0.0.1")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	for name, f := range map[string]TLS{
		"no certificate":  {KeyFile: good.KeyFile, CAFile: good.CAFile},
		"no authority":    {CertFile: good.CertFile, KeyFile: good.KeyFile},
		"a key there":     {CertFile: good.CertFile, KeyFile: good.KeyFile, CAFile: good.KeyFile},
		"the wrong files": {CertFile: good.KeyFile, KeyFile: good.CertFile, CAFile: good.CAFile},
	} {
		if _, err := New(ln, Options{TLS: &f}); err == nil {
			t.Errorf("%s: it starts", name)
		}
	}
	n, err := New(ln, Options{TLS: &good, Handler: &broker{t: t}})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}
