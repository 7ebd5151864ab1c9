package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
)

// certificates are what TLS handshakes use, replaced as a whole when the files change.
type certificates struct {
	now atomic.Pointer[tls.Config]
}

// loadCertificate reads the files t names.
func loadCertificate(t *TLSConfig) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		// Whoever has no certificate may have a token; whether one that is there is good
		// enough is the directory's to say, since some are pinned and not signed.
		ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}
	if t.ClientCA != "" {
		pem, err := readFile(t.ClientCA, MaxFileBytes)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errors.New("no certificate in " + t.ClientCA)
		}
		c.ClientCAs = pool
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}

// load reads the files again; an error leaves what was there in use.
func (c *certificates) load(t *TLSConfig) error {
	conf, err := loadCertificate(t)
	if err != nil {
		return err
	}
	c.now.Store(conf)
	return nil
}

// config is for listeners: each handshake asks for what is in use then. For h2, only
// HTTP may be offered it.
func (c *certificates) config(http bool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conf := c.now.Load()
		if !http {
			conf = conf.Clone()
			conf.NextProtos = nil
		}
		return conf, nil
	}}
}
