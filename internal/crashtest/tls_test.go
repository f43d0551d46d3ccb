package crashtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
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
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var der []byte
	der, a.key = a.sign(template, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// sign makes a certificate with a key of its own; a nil signer is that key.
func (a *authority) sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// equip gives a member certificates signed by the first authority, and lets it
// trust all of them. The files are replaced one after the other, as tools do.
func (m *member) equip(signer *authority, trusted ...*authority) {
	t := m.c.t
	t.Helper()
	cert, key := signer.sign(&x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"localhost"}, // and no address: brokers have to be told by their names
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, signer.cert, signer.key)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var roots []byte
	for _, a := range trusted {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	dir := m.dir + "-tls"
	m.args = []string{"--peer-cert", filepath.Join(dir, "cert"), "--peer-key", filepath.Join(dir, "key"), "--peer-ca", filepath.Join(dir, "ca")}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"cert": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		"key":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		"ca":   roots,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClusterTLS: brokers with certificates form a cluster. The authority is
// replaced while they run, and connections that are made after that use the new
// one. Who has a certificate of another one stays outside.
func TestClusterTLS(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	c := newCluster(t, build(t), 3)
	c.peers = strings.ReplaceAll(c.peers, "127.0.0.1", "localhost")
	for _, m := range c.members {
		m.equip(before, before)
	}
	c.form(felix.CacheSettings{Shards: 4})
	y := newTraffic(t)
	y.through(2, c.members...)
	y.advance(300)
	for _, m := range c.members {
		m.equip(before, before, after)
	}
	for _, m := range c.members {
		m.equip(after, before, after)
	}
	for _, m := range c.members {
		m.equip(after, after)
	}
	last := c.members[2]
	y.pause(last)
	last.b.stop()
	last.equip(before, before) // what it would have had without the change
	last.start()
	last.says("no link to a peer", "certificate")
	last.b.kill()
	last.equip(after, after)
	last.start()
	last.ready()
	y.resume(last)
	y.advance(300)
	y.check(c.members...)
}
