package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/skepkv/skep"
)

// tlsSpec is how TCP connections are secured. Files are PEM.
type tlsSpec struct {
	CA   string `json:"ca"`   // who signs the servers' certificates; "": the system's
	Cert string `json:"cert"` // a certificate for the servers, and its key; "": none
	Key  string `json:"key"`
	Name string `json:"name"` // that a server's certificate has to have; "": the host it is connected to at
}

// config reads the files.
func (t *tlsSpec) config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	bad := func(field, value, limit string, err error) error {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: field, Value: value, Limit: limit, Err: err}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: t.Name}
	if t.CA != "" {
		b, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, bad("tls.ca", t.CA, "a file that can be read", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, bad("tls.ca", t.CA, "a file of certificates, PEM", nil)
		}
	}
	if t.Cert != "" || t.Key != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, bad("tls.cert and tls.key", t.Cert+" "+t.Key, "a certificate and its key, PEM", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
