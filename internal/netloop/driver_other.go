//go:build !linux

package netloop

// newDriver answers the portable driver: event loops are written for Linux.
func newDriver(s *Server) (driver, error) { return newPortable(s), nil }
