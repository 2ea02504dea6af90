[
  inputs: ["{mix,.formatter,demo}.exs", "{lib,test}/**/*.{ex,exs}"]
]
