[
  inputs: ["{mix,.formatter}.exs", "{lib,mix,test,bench,fuzz,guides}/**/*.{ex,exs}"]
]
