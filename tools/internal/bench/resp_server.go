package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep/tools/internal/self"
)

// dialer opens a connection to what is measured.
type dialer func(ctx context.Context) (net.Conn, error)

// respServer is a server process.
type respServer struct {
	cmd     *exec.Cmd
	addr    string
	tls     *tls.Config // of clients and of the loopback; nil: plain
	devices []string
	said    *tail
}

func (s *respServer) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.addr)
	if err == nil && s.tls != nil {
		c = tls.Client(c, &tls.Config{RootCAs: s.tls.RootCAs, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13})
	}
	return c, err
}

func (s *respServer) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// clockTicks is USER_HZ, in which Linux tells times on every platform Go knows.
const clockTicks = 100

// cpu is what the process has used, in seconds.
func (s *respServer) cpu() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ") // the name may hold blanks
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("odd /proc stat: %q", b)
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("odd /proc stat: %q", b)
	}
	return (user + system) / clockTicks, nil
}

// startSkep starts skep serve on a store of its own, RESP alone.
func (w *respBench) startSkep(ctx context.Context, name string, dram int64, secure bool) (*respServer, error) {
	dir := filepath.Join(w.dir, name)
	cmd, err := self.Command(ctx, w.Self, "serve", "--json", "--log", "error", "--dir", dir, "--file-devices", strconv.Itoa(w.Devices),
		"--capacity", strconv.FormatInt(max(16*w.TotalBytes, 2<<30), 10), "--dram", strconv.FormatInt(dram, 10), "--listen", "none", "--unix", "none", "--http", "none", "--resp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "SKEP_STORE_BACKEND="+w.Backend)
	s := &respServer{cmd: cmd, said: &tail{}}
	if secure {
		cert, key, err := s.certificate(w.dir)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "SKEP_TLS_CERT="+cert, "SKEP_TLS_KEY="+key)
	}
	cmd.Stderr = s.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.servers = append(w.servers, s)
	var ready struct {
		Listeners []struct{ Address string } `json:"listeners"`
	}
	if err := json.NewDecoder(out).Decode(&ready); err != nil || len(ready.Listeners) == 0 {
		return nil, fmt.Errorf("skep serve did not start: %w: %s", err, s.said)
	}
	s.addr = ready.Listeners[0].Address
	for i := range w.Devices {
		s.devices = append(s.devices, filepath.Join(dir, fmt.Sprint("device-", i)))
	}
	return s, w.ask(ctx, s)
}

// ask reads what moves the server's bytes out of its INFO.
func (w *respBench) ask(ctx context.Context, s *respServer) error {
	c, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "*2\r\n$4\r\nINFO\r\n$5\r\nstore\r\n*1\r\n$4\r\nQUIT\r\n"); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(c, 1<<16))
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(b), "\r\n") {
		if v, ok := strings.CutPrefix(line, "backend:"); ok {
			w.about.Backend = v
		}
	}
	return nil
}

// certificate makes one for 127.0.0.1 and a client's and a server's view of it.
func (s *respServer) certificate(dir string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return "", "", err
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return "", "", err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	s.tls = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := os.WriteFile(certFile, certPEM, 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, keyPEM, 0o600)
}

// startRedis starts a redis-server that keeps everything in memory. A lasting one answers a SET
// when its log is on the drive.
func (w *respBench) startRedis(ctx context.Context, path string, lasting bool) (*respServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	keep := []string{"--appendonly", "no"}
	if lasting {
		keep = []string{"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"}
	}
	cmd := self.Other(ctx, path, append(keep, "--port", strconv.Itoa(addr.Port), "--bind", "127.0.0.1", "--save", "", "--dir", w.dir)...)
	s := &respServer{cmd: cmd, addr: addr.String(), said: &tail{}}
	cmd.Stdout, cmd.Stderr = s.said, s.said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.servers = append(w.servers, s)
	for range 100 {
		c, err := s.dial(ctx)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		defer c.Close()
		_, _ = io.WriteString(c, "INFO server\r\nQUIT\r\n")
		b, _ := io.ReadAll(c)
		for _, line := range bytes.Split(b, []byte("\r\n")) {
			if v, ok := bytes.CutPrefix(line, []byte("redis_version:")); ok {
				w.redisVersion = string(v)
			}
		}
		return s, nil
	}
	return nil, fmt.Errorf("redis-server did not start: %s", s.said)
}

// respClient sends values from one buffer and drains what comes.
type respClient struct {
	c     net.Conn
	r     *bufio.Reader
	value []byte
	sink  []byte
	id    int
	moved int64
	ops   int64
}

func dialClient(ctx context.Context, dial dialer, id int, size int64) (*respClient, error) {
	c, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	v := make([]byte, size)
	if _, err := rand.Read(v); err != nil {
		return nil, err
	}
	return &respClient{c: c, r: bufio.NewReaderSize(c, 64), value: v, sink: make([]byte, 1<<20), id: id}, nil
}

func (c *respClient) close() { c.c.Close() }

// run goes through the client's keys, once or until end.
func (c *respClient) run(ctx context.Context, cmd string, keys int, once bool, end time.Time) error {
	stop := context.AfterFunc(ctx, func() { c.c.Close() })
	defer stop()
	for i := 0; once && i < keys || !once && time.Now().Before(end); i++ {
		key := fmt.Sprintf("bench:%03d:%08d:%08d", c.id, len(c.value), i%max(keys, 1))
		if err := c.one(cmd, key); err != nil {
			return err
		}
		c.moved += int64(len(c.value))
		c.ops++
	}
	return nil
}

func (c *respClient) one(cmd, key string) error {
	if cmd == "SET" {
		head := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, len(c.value))
		bufs := net.Buffers{[]byte(head), c.value, []byte("\r\n")}
		if _, err := bufs.WriteTo(c.c); err != nil {
			return err
		}
		line, err := c.r.ReadString('\n')
		if err == nil && line != "+OK\r\n" {
			err = fmt.Errorf("SET was answered %q", line)
		}
		return err
	}
	if _, err := fmt.Fprintf(c.c, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("$%d\r\n", len(c.value)); line != want {
		return fmt.Errorf("GET was answered %q", line)
	}
	for left := len(c.value) + 2; left > 0; {
		n, err := c.r.Read(c.sink[:min(left, len(c.sink))])
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// loopback answers SET and GET as fast as a connection goes, keeping nothing: what the
// socket itself allows.
type loopback struct {
	l   net.Listener
	tls *tls.Config
	wg  sync.WaitGroup
}

func startLoopback(conf *tls.Config) (*loopback, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &loopback{l: l, tls: conf}
	b.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if conf != nil {
				c = tls.Server(c, conf)
			}
			b.wg.Go(func() {
				defer c.Close()
				_ = b.answer(c)
			})
		}
	})
	return b, nil
}

func (b *loopback) close() {
	b.l.Close()
	b.wg.Wait()
}

func (b *loopback) dial(ctx context.Context) (net.Conn, error) {
	s := respServer{addr: b.l.Addr().String(), tls: b.tls}
	return s.dial(ctx)
}

// answer reads commands as respClient writes them.
func (b *loopback) answer(c net.Conn) error {
	r := bufio.NewReaderSize(c, 4096)
	mem := make([]byte, 1<<20)
	for {
		var line [7]string
		for i := range 5 {
			s, err := r.ReadString('\n')
			if err != nil {
				return err
			}
			line[i] = strings.TrimSpace(s)
		}
		if line[2] == "GET" {
			key := line[4]
			n, err := strconv.Atoi(strings.Split(key, ":")[2])
			if err != nil {
				return err
			}
			bufs := net.Buffers{fmt.Appendf(nil, "$%d\r\n", n)}
			for left := n; left > 0; left -= len(mem) {
				bufs = append(bufs, mem[:min(left, len(mem))])
			}
			bufs = append(bufs, []byte("\r\n"))
			if _, err := bufs.WriteTo(c); err != nil {
				return err
			}
			continue
		}
		s, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(strings.Trim(s, "$\r\n"))
		if err != nil {
			return err
		}
		for left := n + 2; left > 0; {
			k, err := io.ReadFull(r, mem[:min(left, len(mem))])
			if err != nil {
				return err
			}
			left -= k
		}
		if _, err := io.WriteString(c, "+OK\r\n"); err != nil {
			return err
		}
	}
}
