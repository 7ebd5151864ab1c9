package serve

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificates are what TLS handshakes use, replaced as a whole when the files change.
type certificates struct {
	now atomic.Pointer[loaded]
}

// loaded is what the files held.
type loaded struct {
	*tls.Config
	expires map[string]time.Time // by setting
}

// loadCertificate reads the files t names.
func loadCertificate(t *TLSConfig) (*loaded, error) {
	cert, err := keyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	expires := map[string]time.Time{}
	for _, der := range cert.Certificate {
		if err := soonest(expires, "cert", der); err != nil {
			return nil, err
		}
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		// Whoever has no certificate may have a token; whether one that is there is good
		// enough is the directory's to say, since some are pinned and not signed.
		ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
		// A session that is resumed has what was found out about the client's certificate when it began, by another
		// client_ca, it may be.
		SessionTicketsDisabled: true,
	}
	if t.ClientCA != "" {
		text, err := readFile(t.ClientCA, MaxFileBytes)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, errors.New("no certificate in " + t.ClientCA)
		}
		for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
			_ = soonest(expires, "client_ca", b.Bytes) // what the pool left out, too, is no reason
		}
		c.ClientCAs = pool
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return &loaded{c, expires}, nil
}

// keyPair reads a certificate and its key. Errors name the files.
func keyPair(cert, key string) (tls.Certificate, error) {
	c, err := readFile(cert, MaxFileBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	k, err := readFile(key, MaxFileBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	both, err := tls.X509KeyPair(c, k)
	if err != nil {
		err = fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	return both, err
}

// soonest notes when a certificate runs out, if that is before the others of its setting.
func soonest(expires map[string]time.Time, setting string, der []byte) error {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if at, ok := expires[setting]; !ok || c.NotAfter.Before(at) {
		expires[setting] = c.NotAfter
	}
	return nil
}

var descExpires = prometheus.NewDesc("skep_certificate_expires_seconds", "When the first certificate of a file in use runs out, in seconds since 1970, by setting of tls.", []string{"what"}, nil)

// Describe implements prometheus.Collector.
func (*certificates) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *certificates) Collect(out chan<- prometheus.Metric) {
	if l := c.now.Load(); l != nil {
		for what, at := range l.expires {
			out <- prometheus.MustNewConstMetric(descExpires, prometheus.GaugeValue, float64(at.Unix()), what)
		}
	}
}

// load reads the files again; an error leaves what was there in use. What has run out, or will soon, is taken, and log
// is told: those who do not look at it can be served still.
func (c *certificates) load(t *TLSConfig, log *slog.Logger) error {
	conf, err := loadCertificate(t)
	if err != nil {
		return err
	}
	for what, at := range conf.expires {
		switch left := time.Until(at); {
		case left <= 0:
			log.Error("a certificate has run out: those who check it are not served", "setting", "tls."+what, "since", at.UTC().Format(time.RFC3339))
		case left < soon:
			log.Warn("a certificate runs out soon", "setting", "tls."+what, "at", at.UTC().Format(time.RFC3339))
		}
	}
	c.now.Store(conf)
	return nil
}

// soon is how long before a certificate runs out the log says so.
const soon = 14 * 24 * time.Hour

// config is for listeners: each handshake asks for what is in use then. For h2, only
// HTTP may be offered it.
func (c *certificates) config(http bool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conf := c.now.Load().Config
		if !http {
			conf = conf.Clone()
			conf.NextProtos = nil
		}
		return conf, nil
	}}
}
