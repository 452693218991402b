"""How do rows outlive the rank that held them? By the parity of several ranks on another one."""
