package daemon

import (
	"errors"
	"fmt"
	"net"
)

// listeners are those of one broker, bound before anything else is done.
type listeners struct {
	resp, http, peer net.Listener
}

// listen binds what the settings ask for: all of it, or none.
func listen(c Config) (l listeners, err error) {
	for _, one := range []struct {
		flag, addr string
		into       *net.Listener
	}{
		{"resp-addr", c.RESPAddr, &l.resp}, {"http-addr", c.HTTPAddr, &l.http}, {"peer-addr", c.PeerAddr, &l.peer},
	} {
		if *one.into, err = net.Listen("tcp", one.addr); err != nil {
			return listeners{}, errors.Join(fmt.Errorf("--%s %s: %w", one.flag, one.addr, plain(err)), l.close())
		}
	}
	return l, nil
}

// close closes those that are not closed yet.
func (l *listeners) close() error {
	var errs []error
	for _, one := range []net.Listener{l.resp, l.http, l.peer} {
		if one == nil {
			continue
		}
		if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// plain takes the "listen tcp 1.2.3.4:5:" off a listen error.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
